"""The items a response is made from: those of the request, those it names, those before it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from mlx_server.api.responses_prompt import PlacedItem, missing
from mlx_server.api.responses_store import ResponseStore
from mlx_server.errors import InvalidRequest
from mlx_server.models import MAX_MESSAGES
from mlx_server.responses_wire import (
    InputItem,
    InputPart,
    Item,
    ItemPart,
    OutputTextPart,
    ReasoningPart,
    RefusalPart,
    ResponsesRequest,
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """`items` is the whole conversation; `own` are the request's, to be kept with its answer."""

    items: Sequence[PlacedItem]
    own: Sequence[PlacedItem]


def gather(wire: ResponsesRequest, store: ResponseStore) -> Gathered:
    """Reads the store, so it blocks; raises InvalidRequest for what is not there."""
    before = [
        PlacedItem(InputItem.model_validate(item), "previous_response_id")
        for item in history(wire.previous_response_id, store)
    ]
    own = [resolve(item, f"input.{i}", store) for i, item in enumerate(wire.input)]
    if len(before) + len(own) > MAX_MESSAGES:
        raise InvalidRequest(
            f"A conversation may have at most {MAX_MESSAGES} items.", param="previous_response_id"
        )
    return Gathered([*before, *own], own)


def history(previous_id: str | None, store: ResponseStore) -> list[Item]:
    if previous_id is None:
        return []
    conversation = store.conversation(previous_id)
    if conversation is None:
        raise InvalidRequest(
            "This server has no response of that id, or none of those before it any more; send the "
            "whole conversation as `input`.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if conversation[-1].response["status"] not in ("completed", "incomplete"):
        raise InvalidRequest(
            "That response has failed or was cancelled; continue from one that has ended.",
            param="previous_response_id",
        )
    return [item for one in conversation for item in (*one.input, *one.response["output"])]


def resolve(item: InputItem, param: str, store: ResponseStore) -> PlacedItem:
    """The item itself, or the stored one that it refers to."""
    if item.type != "item_reference":
        return PlacedItem(item, param)
    if item.id is None:
        raise missing(f"{param}.id")
    found = store.item(item.id)
    if found is None:
        raise InvalidRequest(
            "This server has no item of that id; send the item itself.", param=f"{param}.id"
        )
    return PlacedItem(InputItem.model_validate(found), param)


def item_object(item: InputItem) -> Item:
    """The full form of an item that was accepted, as it is kept and listed."""
    status = item.status or "completed"
    match item.type:
        case "reasoning":
            return {
                "id": item.id or new_id("rs"),
                "type": "reasoning",
                "summary": [reasoning_part(part) for part in item.summary or ()],
                "content": [reasoning_part(part) for part in item.content or ()],
                "status": status,
            }
        case "function_call":
            return {
                "id": item.id or new_id("fc"),
                "type": "function_call",
                "status": status,
                "call_id": item.call_id or "",
                "name": item.name or "",
                "arguments": item.arguments or "",
            }
        case "function_call_output":
            return {
                "id": item.id or new_id("fco"),
                "type": "function_call_output",
                "status": status,
                "call_id": item.call_id or "",
                "output": call_output(item.output or []),
            }
    is_answer = item.role == "assistant"
    parts = item.content or []
    return {
        "id": item.id or new_id("msg"),
        "type": "message",
        "status": status,
        "role": item.role or "user",
        "content": [output_part(part) if is_answer else input_part(part) for part in parts],
    }


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def call_output(parts: Sequence[ItemPart]) -> str | list[InputPart]:
    if len(parts) == 1 and parts[0].type == "text":
        return parts[0].text or ""
    return [input_part(part) for part in parts]


def reasoning_part(part: ItemPart) -> ReasoningPart:
    kind = part.type
    return {
        "type": "summary_text" if kind == "summary_text" else "reasoning_text",
        "text": part.text or "",
    }


def input_part(part: ItemPart) -> InputPart:
    if part.type == "input_image":
        url = part.image_url or ""
        return {"type": "input_image", "image_url": url, "detail": part.detail or "auto"}
    return {"type": "input_text", "text": part.text or part.refusal or ""}


def output_part(part: ItemPart) -> OutputTextPart | RefusalPart:
    if part.type == "refusal":
        return {"type": "refusal", "refusal": part.refusal or ""}
    return {"type": "output_text", "text": part.text or "", "annotations": [], "logprobs": []}
