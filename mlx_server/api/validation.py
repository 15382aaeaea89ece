"""Pydantic's complaints in our words: which field, what it must be, and never what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mlx_server.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)

# Pydantic's own sentences are not used: some of them quote the input.
REASONS: Mapping[str, str] = {
    "missing": "is required",
    "bool_type": "must be true or false",
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than_equal": "must be at most {le:g}",
    "too_short": "must have at least {min_length} entries",
    "too_long": "may have at most {max_length} entries",
}
HINTS: Mapping[str, str] = {
    "messages": "Send the conversation as a list of messages, each with a role and content.",
    "max_tokens": "Leave it out for an answer of any length.",
    "max_completion_tokens": "Leave it out for an answer of any length.",
}


def validate(
    model: type[Model], body: Mapping[str, Any], hints: Mapping[str, str] = HINTS
) -> Model:
    """Read a decoded body as `model`; the first thing wrong is raised as an InvalidRequest, with
    what `hints` has for the field.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise invalid_field(first["loc"], reason(first), hints) from None


def invalid_field(
    location: Sequence[str | int], reason_text: str, hints: Mapping[str, str] = HINTS
) -> InvalidRequest:
    param = ".".join(str(step) for step in location)
    message = " ".join(filter(None, (f"`{param}` {reason_text}.", hints.get(param))))
    return InvalidRequest(message, param=param)


def reason(error: ErrorDetails | Mapping[str, Any]) -> str:
    if error["type"] == "wire_error":
        return str(error["msg"])
    template = REASONS.get(error["type"], "has a form that is not allowed here")
    return template.format(**error.get("ctx", {}))
