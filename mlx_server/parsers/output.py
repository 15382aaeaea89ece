"""Splits a model's text into content and tool calls while it is being written.

Knows nothing of tokens or HTTP. Text flows at once; only what may be the beginning of a marker is
held back, and white space behind a call until it is known to be more than the gap to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.tools import TOOL_FORMATS
from mlx_server.parsers.tools.call import (
    BlockReader,
    CallArguments,
    CallEnd,
    CallEvent,
    CallHead,
    NotACall,
)

__all__ = [
    "ContentDelta",
    "OutputDelta",
    "OutputParser",
    "ReasoningDelta",
    "ToolCallArguments",
    "ToolCallStart",
]


class OutputParser:
    """Reads one answer; what it says joins to the same result however the text was cut.

    A call that breaks off after its start keeps the arguments that were sent, which are no JSON,
    and its whole text comes as content. Without tools, or without a format, all text is content.
    """

    def __init__(self, tool_format: str | None, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self.num_tool_calls = 0
        self._tools = tools
        self._format = TOOL_FORMATS[tool_format] if tool_format is not None and tools else None
        self._splitter = MarkerSplitter(*self._format.readers if self._format else ())
        self._block: BlockReader | None = None
        self._index = -1  # of the latest call
        self._gap: str | None = None  # white space behind a call, None once content followed it
        self._deltas: list[OutputDelta] = []

    def feed(self, text: str) -> list[OutputDelta]:
        if self._format is None:
            return [ContentDelta(text)] if text else []
        rest: str | None = text
        while rest:
            rest = self._read_text(rest) if self._block is None else self._read_block(rest)
        return self._take()

    def finish(self) -> list[OutputDelta]:
        """The text is over; nothing may be fed after this."""
        if self._block is not None:
            self._report(self._block.finish())
        elif self._format is not None:
            self._add_content(self._splitter.finish())
        return self._take()

    def _read_text(self, text: str) -> str | None:
        """Read up to the next block; return the text behind its start marker."""
        assert self._format is not None
        split = self._splitter.feed(text)
        self._add_content(split.before)
        if split.behind is not None:
            self._block = self._format.readers[split.marker](self._tools)
        return split.behind

    def _read_block(self, text: str) -> str | None:
        """Read up to the end of the block; return the text behind it."""
        assert self._block is not None
        news = self._block.feed(text)
        self._report(news.events)
        if news.rest is not None:
            self._block = None
        return news.rest

    def _report(self, events: Sequence[CallEvent]) -> None:
        for event in events:
            match event:
                case CallHead(name):
                    self._index += 1
                    self._deltas.append(ToolCallStart(self._index, new_call_id(), name))
                case CallArguments(text):
                    self._deltas.append(ToolCallArguments(self._index, text))
                case CallEnd():
                    self.num_tool_calls += 1
                    self._gap = ""
                case NotACall(text):
                    self._add_content(text)

    def _add_content(self, text: str) -> None:
        if self._gap is not None:
            text = self._gap + text
            self._gap = None if text.strip() else text
        if text and self._gap is None:
            self._deltas.append(ContentDelta(text))

    def _take(self) -> list[OutputDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas


def new_call_id() -> str:
    return f"call_{token_hex(12)}"
