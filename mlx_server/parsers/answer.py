"""Collects the deltas of one answer into the message they make."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """`arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(slots=True)
class _GrowingCall:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class Answer:
    """Valid once `finish` was called; calls that broke off are left out, their text is content."""

    def __init__(self) -> None:
        self.content: str | None = None
        self.reasoning: str | None = None
        self.tool_calls: tuple[FinishedCall, ...] = ()
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _GrowingCall] = {}

    def add(self, deltas: Iterable[OutputDelta]) -> None:
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    self._content.append(text)
                case ReasoningDelta(text):
                    self._reasoning.append(text)
                case ToolCallStart(index, call_id, name):
                    self._calls[index] = _GrowingCall(call_id, name)
                case ToolCallArguments(index, text):
                    self._calls[index].arguments.append(text)

    def finish(self) -> None:
        self.content = "".join(self._content) or None
        self.reasoning = "".join(self._reasoning) or None
        calls = (
            FinishedCall(call.id, call.name, "".join(call.arguments))
            for _, call in sorted(self._calls.items())
        )
        self.tool_calls = tuple(call for call in calls if is_object(call.arguments))


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
