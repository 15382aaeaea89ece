"""What wire types are made of: numbers in ranges, and objects that drop what they do not know."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


def wire_error(message: str) -> PydanticCustomError:
    """A validation error whose message is ours word for word, and fit to be shown."""
    return PydanticCustomError("wire_error", message)


def _whole_number(value: object) -> object:
    # Several client libraries write every number as a float.
    return int(value) if isinstance(value, float) and value.is_integer() else value


Flag = Annotated[bool, Field(strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True), BeforeValidator(_whole_number)]
Penalty = Annotated[Real, Field(ge=-2, le=2)]
Probability = Annotated[Real, Field(ge=0, le=1)]
TokenLimit = Annotated[Whole, Field(ge=1)]


class WireModel(BaseModel):
    """A JSON object of a request; fields it does not know are dropped."""

    model_config = ConfigDict(extra="ignore", frozen=True)
