"""Cuts an answer into Anthropic's content blocks: the events by which they come, and the whole.

A block goes on until a delta of another kind comes. Nothing but white space makes no block, since
the API takes no such block back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from mlx_server.api.sse import pieces
from mlx_server.messages_wire import ContentBlock
from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)

Event = Mapping[str, Any]
Kind = Literal["text", "thinking", "tool_use"]

# Clients send back only thinking that is signed. There is nobody here whom a signature would tell
# anything, so all have the same.
SIGNATURE = "mlx_server"
DELTAS: Mapping[Kind, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class BlockEvents:
    """What the deltas of one answer are as events; `finish` ends the last block.

    Without `shows_thinking` there are blocks of thinking, but no word in them.
    """

    def __init__(self, *, shows_thinking: bool = True) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._kind: Kind | None = None
        self._blank: dict[Kind, str] = {}  # of the kind that would be next, if text comes

    def add(self, delta: OutputDelta) -> Iterator[Event]:
        match delta:
            case ContentDelta(text):
                yield from self._write("text", text)
            case ReasoningDelta(text):
                yield from self._write("thinking", text)
            case ToolCallStart(_, call_id, name):
                call_id = f"toolu_{call_id.removeprefix('call_')}"
                yield from self._begin("tool_use", id=call_id, name=name, input={})
            case ToolCallArguments(_, text):
                yield from self._deltas(text)

    def finish(self) -> Iterator[Event]:
        yield from self._end()

    def _write(self, kind: Literal["text", "thinking"], text: str) -> Iterator[Event]:
        if kind != self._kind:
            text = self._blank.get(kind, "") + text
            if not text.strip():
                self._blank = {kind: text}
                return
            yield from self._begin(kind, **{kind: ""})
        if kind == "text" or self._shows_thinking:
            yield from self._deltas(text)

    def _begin(self, kind: Kind, **fields: Any) -> Iterator[Event]:
        yield from self._end()
        self._kind = kind
        self._index += 1
        yield {
            "type": "content_block_start",
            "index": self._index,
            "content_block": {"type": kind, **fields},
        }

    def _deltas(self, text: str) -> Iterator[Event]:
        assert self._kind is not None
        delta_type, name = DELTAS[self._kind]
        for piece in pieces(text):
            yield self._delta(delta_type, name, piece)

    def _end(self) -> Iterator[Event]:
        self._blank = {}
        if self._kind is None:
            return
        if self._kind == "thinking":
            yield self._delta("signature_delta", "signature", SIGNATURE)
        yield {"type": "content_block_stop", "index": self._index}
        self._kind = None

    def _delta(self, delta_type: str, name: str, text: str) -> Event:
        return {
            "type": "content_block_delta",
            "index": self._index,
            "delta": {"type": delta_type, name: text},
        }


class WholeBlocks:
    """The blocks that a client makes of the events."""

    def __init__(self) -> None:
        self._starts: list[Event] = []
        self._texts: list[list[str]] = []

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            if event["type"] == "content_block_start":
                self._starts.append(event["content_block"])
                self._texts.append([])
            elif event["type"] == "content_block_delta" and "signature" not in event["delta"]:
                _, name = DELTAS[self._starts[-1]["type"]]
                self._texts[-1].append(event["delta"][name])

    def blocks(self) -> list[ContentBlock]:
        """Without a call that broke off, whose text is there as text."""
        texts = map("".join, self._texts)
        found = (whole_block(*block) for block in zip(self._starts, texts, strict=True))
        return [block for block in found if block is not None]


def whole_block(start: Event, text: str) -> ContentBlock | None:
    match start["type"]:
        case "text":
            return {"type": "text", "text": text}
        case "thinking":
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
    arguments = object_or_none(text)
    if arguments is None:
        return None
    return {"type": "tool_use", "id": start["id"], "name": start["name"], "input": arguments}


def object_or_none(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
