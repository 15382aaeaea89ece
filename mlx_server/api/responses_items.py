"""The items of one response while they are written; every change to them is an event."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from mlx_server.api.logprobs import groups, logprob_object
from mlx_server.api.responses_input import new_id
from mlx_server.api.responses_tokens import ContentTokens
from mlx_server.api.sse import pieces
from mlx_server.engine.sequence import TokenLogprob
from mlx_server.models import TokenLogprobObject
from mlx_server.parsers.answer import is_object
from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.responses_wire import (
    CallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputTextPart,
    ReasoningItem,
    ReasoningPart,
)

Event = dict[str, Any]


class GrowingItem(ABC):
    """Item `index` of the output."""

    def __init__(self, index: int, prefix: str) -> None:
        self.id = new_id(prefix)
        self.status: ItemStatus = "in_progress"
        self._index = index
        self._text: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    @abstractmethod
    def object(self) -> OutputItem:
        """The item as it is now."""

    def begin(self) -> Iterator[Event]:
        yield self._item_event("response.output_item.added")

    @abstractmethod
    def grow(self, text: str) -> Iterator[Event]:
        """The item goes on with `text`, which is not empty."""

    def end(self, status: ItemStatus) -> Iterator[Event]:
        self.status = status
        yield self._item_event("response.output_item.done")

    def _item_event(self, kind: str) -> Event:
        return {"type": kind, "output_index": self._index, "item": self.object()}

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "item_id": self.id, "output_index": self._index, **fields}


class GrowingText(GrowingItem):
    """An item with one part, which is text; its own events begin with `kind`."""

    kind: str

    def __init__(self, index: int, prefix: str) -> None:
        super().__init__(index, prefix)
        self._has_part = False

    @abstractmethod
    def part(self) -> OutputTextPart | ReasoningPart:
        """The part as it is now."""

    def begin(self) -> Iterator[Event]:
        yield from super().begin()
        self._has_part = True
        yield self._event("response.content_part.added", content_index=0, part=self.part())

    def grow(self, text: str) -> Iterator[Event]:
        for piece in pieces(text):
            self._text.append(piece)
            yield from self._deltas(piece)

    def end(self, status: ItemStatus) -> Iterator[Event]:
        yield self._text_event("done", text=self.text)
        yield self._event("response.content_part.done", content_index=0, part=self.part())
        yield from super().end(status)

    def _deltas(self, piece: str) -> Iterator[Event]:
        yield self._text_event("delta", delta=piece)

    def _text_event(self, suffix: str, **fields: Any) -> Event:
        return self._event(f"{self.kind}.{suffix}", content_index=0, **fields)


class GrowingReasoning(GrowingText):
    kind = "response.reasoning_text"

    def __init__(self, index: int) -> None:
        super().__init__(index, "rs")

    def part(self) -> ReasoningPart:
        return {"type": "reasoning_text", "text": self.text}

    def object(self) -> ReasoningItem:
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [],
            "content": [self.part()] if self._has_part else [],
            "status": self.status,
        }


class GrowingMessage(GrowingText):
    """Takes the logprobs of its text out of `tokens`."""

    kind = "response.output_text"

    def __init__(self, index: int, tokens: ContentTokens) -> None:
        super().__init__(index, "msg")
        self._tokens = tokens
        self._logprobs: list[TokenLogprobObject] = []

    def part(self) -> OutputTextPart:
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def object(self) -> MessageItem:
        return {
            "id": self.id,
            "type": "message",
            "status": self.status,
            "role": "assistant",
            "content": [self.part()] if self._has_part else [],
        }

    def _deltas(self, piece: str) -> Iterator[Event]:
        """One, or more where the logprobs would not fit a line."""
        for group in [*groups(self._tokens.take(piece))] or [[]]:
            logprobs = [logprob_object(token) for token in group]
            self._logprobs += logprobs
            yield self._text_event("delta", delta=piece, logprobs=logprobs)
            piece = ""

    def _text_event(self, suffix: str, **fields: Any) -> Event:
        if suffix == "done":
            fields["logprobs"] = list(self._logprobs)
        return super()._text_event(suffix, **fields)


class GrowingCall(GrowingItem):
    """A call that broke off stays incomplete, and nobody is told that its arguments are done."""

    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index, "fc")
        self._call_id = call_id
        self._name = name

    def object(self) -> CallItem:
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.text,
        }

    def grow(self, text: str) -> Iterator[Event]:
        for piece in pieces(text):
            self._text.append(piece)
            yield self._event("response.function_call_arguments.delta", delta=piece)

    def end(self, status: ItemStatus) -> Iterator[Event]:
        if not is_object(self.text):
            yield from super().end("incomplete")
            return
        kind = "response.function_call_arguments.done"
        yield self._event(kind, name=self._name, arguments=self.text)
        yield from super().end("completed")


class GrowingOutput:
    """All items, of which the last one may be open."""

    def __init__(self) -> None:
        self._tokens = ContentTokens()
        self._items: list[GrowingItem] = []

    def objects(self) -> list[OutputItem]:
        return [item.object() for item in self._items]

    def add_tokens(self, tokens: Sequence[TokenLogprob]) -> None:
        """Must come before the text that they make."""
        self._tokens.add(tokens)

    def add(self, delta: OutputDelta) -> Iterator[Event]:
        if not isinstance(delta, ContentDelta):
            self._tokens.drop()
        match delta:
            case ContentDelta(text):
                if not isinstance(self._open, GrowingMessage):
                    yield from self._begin(GrowingMessage(len(self._items), self._tokens))
                yield from self._items[-1].grow(text)
            case ReasoningDelta(text):
                if not isinstance(self._open, GrowingReasoning):
                    yield from self._begin(GrowingReasoning(len(self._items)))
                yield from self._items[-1].grow(text)
            case ToolCallStart(_, call_id, name):
                yield from self._begin(GrowingCall(len(self._items), call_id, name))
            case ToolCallArguments(_, text):
                yield from self._items[-1].grow(text)

    def finish(self, *, is_cut: bool) -> Iterator[Event]:
        """The answer is over; one that says nothing is an empty message."""
        says_something = any(not isinstance(item, GrowingReasoning) for item in self._items)
        if not is_cut and not says_something:
            yield from self._begin(GrowingMessage(len(self._items), self._tokens))
        yield from self._end("incomplete" if is_cut else "completed")

    @property
    def _open(self) -> GrowingItem | None:
        last = self._items[-1] if self._items else None
        return last if last is not None and last.status == "in_progress" else None

    def _begin(self, item: GrowingItem) -> Iterator[Event]:
        yield from self._end("completed")
        self._items.append(item)
        yield from item.begin()

    def _end(self, status: ItemStatus) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.end(status)
