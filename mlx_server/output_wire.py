"""The wire types with which a chat or completion request says what its answer must be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from mlx_server.wire_base import Flag, WireModel

MAX_CHOICE_TEXTS = 10_000


def mode_as_object(value: object) -> object:
    """`"required"` is short for `{"type": "required"}`."""
    return {"type": value} if isinstance(value, str) else value


class JsonSchemaFormat(WireModel):
    """`strict` changes nothing: a schema is always enforced."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    json_schema: Annotated[dict[str, Any], Field(alias="schema")] = {}
    strict: Flag | None = None


class OutputFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(WireModel):
    """One of them; `grammar` is in Lark as llguidance reads it."""

    json_schema: Annotated[dict[str, Any] | None, Field(alias="json")] = None
    json_object: Flag = False
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICE_TEXTS)] | None = None
    grammar: str | None = None


class NamedFunction(WireModel):
    name: str


class AllowedTool(WireModel):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(WireModel):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1)]


class ChatToolChoice(WireModel):
    """A mode, the function that must be called, or the tools from which the model may choose."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None
