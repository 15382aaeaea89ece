"""Writes docs/api.md: every field of every request body, from the wire types themselves.

Run it after a change of the API: `python -m scripts.api_docs`. A test compares the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from mlx_server import messages_wire, models, responses_wire
from mlx_server.api import messages, parameters, responses, tokens
from mlx_server.messages_wire import MessagesRequest
from mlx_server.models import ChatCompletionRequest, CompletionRequest
from mlx_server.responses_wire import ResponsesRequest
from mlx_server.tokens_wire import DetokenizeRequest, TemplateFields, TokenizeRequest

FILE = Path(__file__).parent.parent / "docs" / "api.md"

Schema = Mapping[str, Any]
Neutral = Mapping[str, tuple[object, ...]]


@dataclass(frozen=True)
class Endpoint:
    """One kind of request; `note` says what its table cannot."""

    path: str
    model: type[BaseModel]
    neutral: Neutral = field(default_factory=dict)
    inert: frozenset[str] = parameters.INERT
    note: str = ""


ENDPOINTS = (
    Endpoint("POST /v1/chat/completions", ChatCompletionRequest, parameters.NEUTRAL_VALUES),
    Endpoint("POST /v1/completions", CompletionRequest, parameters.NEUTRAL_VALUES),
    Endpoint("POST /v1/responses", ResponsesRequest, responses.NEUTRAL_VALUES),
    Endpoint(
        "POST /v1/responses/input_tokens",
        ResponsesRequest,
        note="Takes the fields of `POST /v1/responses` and counts the tokens of its prompt.",
    ),
    Endpoint("POST /v1/messages", MessagesRequest, messages.NEUTRAL_VALUES),
    Endpoint(
        "POST /v1/messages/count_tokens",
        MessagesRequest,
        note="Takes the fields of `POST /v1/messages` that make up a prompt; others may stand.",
    ),
    Endpoint(
        "POST /v1/chat/completions/input_tokens",
        ChatCompletionRequest,
        note="Takes the fields of `POST /v1/chat/completions` and counts the tokens of its prompt.",
    ),
    Endpoint(
        "POST /v1/tokenize",
        TokenizeRequest,
        tokens.NEUTRAL_VALUES,
        note="Takes either `prompt` or, with `messages`, the fields of `POST "
        "/v1/chat/completions`. A prompt past the model's context is counted as well.",
    ),
    Endpoint(
        "POST /v1/apply-template",
        TemplateFields,
        tokens.NEUTRAL_VALUES,
        note="Takes the fields of `POST /v1/chat/completions` besides.",
    ),
    Endpoint("POST /v1/detokenize", DetokenizeRequest),
)

# What validators take that the types behind them do not show, by the names of the validators.
FORMS: Mapping[str, str] = {
    "_call_arguments": "text that holds a JSON object, or the object",
    "_labels": "object of at most 16 texts",
    "_mode_as_choice": "`none`, `auto`, `required`, or {}",
    "_prompts": "text, token ids, or list of at most 128 of either",
    "_sent_ids": "token ids",
    "_stop_sequences": "list of at most 16 texts",
    "_stop_strings": "text, or list of at most 16 texts",
    "_text_as_block": "text, or {}",
    "_text_as_items": "text, or {}",
    "_text_as_part": "text, or {}",
    "_text_as_parts": "text, or {}",
    "_token_biases": "object of token ids and numbers from -100 to 100",
    "_url_as_object": "URL, or {}",
    "mode_as_object": "`none`, `auto`, `required`, or {}",
}
HONOURED, INERT, REFUSED = "honoured", "accepted, changes nothing", "refused"
GIVEN_BACK = "given back, changes nothing else"
SERVED_BLOCKS = ", ".join(f"`{kind}`" for kind in sorted(messages_wire.SERVED_BLOCKS))
SERVED_ITEMS = ", ".join(f"`{kind}`" for kind in responses_wire.SERVED_ITEMS)
# Known fields that are not simply honoured, by the class of their object.
NOTES: Mapping[tuple[type[BaseModel], str], str] = {
    (models.ImageUrl, "detail"): INERT,
    (models.Message, "audio"): REFUSED,
    (models.Part, "type"): "honoured; refused: `input_audio`, `file`",
    (models.StreamOptions, "include_obfuscation"): "only `false`",
    (messages_wire.Block, "type"): f"honoured; refused but {SERVED_BLOCKS}",
    (messages_wire.BlockFields, "type"): f"honoured; refused but {SERVED_BLOCKS}",
    (messages_wire.Block, "cache_control"): INERT,
    (messages_wire.BlockFields, "cache_control"): INERT,
    (messages_wire.MessagesRequest, "cache_control"): INERT,
    (messages_wire.MessagesRequest, "service_tier"): INERT,
    (messages_wire.MessagesTool, "allowed_callers"): 'only `["direct"]`',
    (messages_wire.MessagesTool, "cache_control"): INERT,
    (messages_wire.MessagesTool, "defer_loading"): "only `false`",
    (messages_wire.MessagesTool, "input_examples"): "only `[]`",
    (messages_wire.MessagesTool, "type"): 'only `"custom"`',
    (messages_wire.Source, "type"): "honoured; refused: `file`",
    (messages_wire.Thinking, "type"): "honoured; refused: `between_tools`",
    (messages_wire.Transformations, "oversized_image"): 'only `"downsize"`',
    (responses_wire.InputItem, "type"): f"honoured; refused but {SERVED_ITEMS}",
    (responses_wire.ItemPart, "detail"): INERT,
    (responses_wire.ItemPart, "file_id"): REFUSED,
    (responses_wire.ItemPart, "type"): "honoured; refused: `input_file`, `input_audio`",
    (responses_wire.ResponsesRequest, "metadata"): GIVEN_BACK,
    (responses_wire.ResponsesRequest, "prompt_cache_key"): GIVEN_BACK,
    (responses_wire.ResponsesRequest, "prompt_cache_retention"): GIVEN_BACK,
    (responses_wire.ResponsesRequest, "safety_identifier"): GIVEN_BACK,
    (responses_wire.ResponsesRequest, "user"): GIVEN_BACK,
    (responses_wire.ResponsesTool, "allowed_callers"): 'only `["direct"]`',
    (responses_wire.ResponsesTool, "defer_loading"): "only `false`",
    (responses_wire.ResponsesTool, "type"): 'only `"function"`',
    (responses_wire.TextOptions, "verbosity"): 'only `"medium"`',
}
NAMES = {"string": "text", "integer": "whole number", "number": "number"}
LIMITS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}
HEAD = """# The fields of requests

Written by `scripts/api_docs.py` from the wire types; do not edit it.

All paths are served without `/v1` as well. A field that is `null` counts as left out. A field that
is *refused*, or has a value beside those it may *only* have, is answered with status 400 and its
name as `param`. Fields that no table has are dropped.
"""


def api_docs() -> str:
    parts = [HEAD]
    shown: set[type[BaseModel]] = set()
    for endpoint in ENDPOINTS:
        parts.append(f"\n## {endpoint.path}\n")
        if endpoint.note:
            parts.append(f"\n{endpoint.note}\n")
        if endpoint.model in shown:
            continue
        parts.append(table(endpoint.model, endpoint.neutral, endpoint.inert))
        shown.add(endpoint.model)
        for model in nested_models(endpoint.model):
            if model not in shown:
                shown.add(model)
                about = f"\n{paragraph(model)}\n" if model.__doc__ else ""
                parts.append(f"\n### {model.__name__}\n{about}{table(model)}")
    return "".join(parts)


def table(
    model: type[BaseModel], neutral: Neutral | None = None, inert: frozenset[str] = frozenset()
) -> str:
    lines = ["", "| field | takes | default | this server |", "| - | - | - | - |"]
    lines += [row(*cells) for cells in sorted(rows(model, neutral or {}, inert))]
    return "\n".join(lines) + "\n"


def rows(
    model: type[BaseModel], neutral: Neutral, inert: frozenset[str]
) -> Iterator[tuple[str, str, str, str]]:
    schema = model.model_json_schema()
    required = schema.get("required", ())
    infos = {info.alias or name: info for name, info in model.model_fields.items()}
    for name, shape in schema["properties"].items():
        info = infos[name]
        taken = form(info).format(words(shape) + bounds(info))
        does = NOTES.get((model, name)) or (only(neutral[name]) if name in neutral else HONOURED)
        yield name, taken, "required" if name in required else default(shape), does
    own = schema["properties"].keys()
    for name in neutral.keys() - own:
        yield name, "", "", only(neutral[name])
    for name in inert - own:
        yield name, "anything", "", INERT


def row(name: str, *cells: str) -> str:
    return " | ".join([f"| `{name}`", *cells]).rstrip() + " |"


def only(values: tuple[object, ...]) -> str:
    if not values:
        return REFUSED
    return f"only {' or '.join(f'`{json.dumps(value)}`' for value in values)}"


def default(shape: Schema) -> str:
    value = shape.get("default")
    return "" if value is None or isinstance(value, dict) and value else f"`{json.dumps(value)}`"


def words(shape: Schema) -> str:
    """What a JSON schema lets pass; null is a matter of all fields alike."""
    if "$ref" in shape:
        return f"`{shape['$ref'].rpartition('/')[2]}`"
    if "anyOf" in shape:
        return " or ".join(words(one) for one in shape["anyOf"] if one.get("type") != "null")
    if "enum" in shape or "const" in shape:
        return ", ".join(f"`{value}`" for value in shape.get("enum", [shape.get("const")]))
    match shape.get("type"):
        case "array":
            most = f", at most {shape['maxItems']}" if "maxItems" in shape else ""
            return f"list of {words(shape.get('items', {}))}{most}"
        case "object":
            return "object"
        case "boolean":
            return "`true`, `false`"
        case str(name):
            return NAMES[name]
    return "anything"


def form(info: FieldInfo) -> str:
    """What a validator lets pass beside the type, which stands for the braces."""
    for item in metadata_of(info):
        if isinstance(item, BeforeValidator) and item.func.__name__ in FORMS:
            return FORMS[item.func.__name__]
    return "{}"


def bounds(info: FieldInfo) -> str:
    """Of numbers; not from the schema, which has none where a validator comes before them."""
    limits = list(metadata_of(info))
    return "".join(
        f" {word} {getattr(limit, name):g}"
        for name, word in LIMITS.items()
        for limit in limits
        if hasattr(limit, name)
    )


def metadata_of(info: FieldInfo) -> Iterator[Any]:
    yield from info.metadata
    for choice in getattr(info.annotation, "__args__", ()):
        for item in getattr(choice, "__metadata__", ()):
            yield from item.metadata if isinstance(item, FieldInfo) else (item,)


def nested_models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """The objects inside of it, in the order in which they are met."""
    for info in model.model_fields.values():
        for found in models_in(info.annotation):
            yield found
            yield from nested_models(found)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from models_in(argument)


def paragraph(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


if __name__ == "__main__":
    FILE.write_text(api_docs())
