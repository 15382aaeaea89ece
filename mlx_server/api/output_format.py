"""What a chat or completion request says its answer must be, in the engine's terms."""

from __future__ import annotations

from mlx_server.engine.sequence import ResponseFormat
from mlx_server.errors import InvalidRequest
from mlx_server.models import FormattedFields
from mlx_server.output_wire import StructuredOutputs
from mlx_server.parsers.answer_grammar import ANY_OBJECT, refuse_unenforceable


def response_format(wire: FormattedFields) -> ResponseFormat | None:
    """Raises InvalidRequest for one that cannot be enforced, whatever the model."""
    wanted = _response_format(wire)
    if wire.structured_outputs is not None:
        if wanted is not None:
            raise InvalidRequest(
                "Leave either `response_format` or `structured_outputs` out.",
                param="structured_outputs",
            )
        wanted = _structured(wire.structured_outputs)
    if wanted is not None:
        refuse_unenforceable(wanted)
    return wanted


def _response_format(wire: FormattedFields) -> ResponseFormat | None:
    asked = wire.response_format
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return ResponseFormat("json_schema", ANY_OBJECT)
    if asked.json_schema is None:
        raise InvalidRequest(
            "`response_format.json_schema` is required for this type.",
            param="response_format.json_schema",
        )
    param = "response_format.json_schema.schema"
    return ResponseFormat("json_schema", asked.json_schema.json_schema, param)


def _structured(asked: StructuredOutputs) -> ResponseFormat:
    given = {
        "json": asked.json_schema,
        "json_object": ANY_OBJECT if asked.json_object else None,
        "regex": asked.regex,
        "choice": asked.choice,
        "grammar": asked.grammar,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        raise InvalidRequest(
            f"`structured_outputs` must have exactly one of {', '.join(given)}.",
            param="structured_outputs",
        )
    (name,) = names
    param = f"structured_outputs.{name}"
    match name:
        case "regex":
            return ResponseFormat("regex", given[name], param)
        case "choice":
            return ResponseFormat("choice", given[name], param)
        case "grammar":
            return ResponseFormat("lark", given[name], param)
    return ResponseFormat("json_schema", given[name], param)
