"""Splits a model's text into reasoning, content and tool calls while it is being written.

Knows nothing of tokens or HTTP. Text flows at once; only what may be the beginning of a marker is
held back, white space that may be the gap between two parts, and calls inside of reasoning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlx_server.parsers.delta_writer import DeltaWriter
from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.parsers.harmony_output import HarmonyOutput
from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.reasoning import HARMONY, make_segmenter
from mlx_server.parsers.segments import Kind, Segment
from mlx_server.parsers.tools import TOOL_FORMATS
from mlx_server.parsers.tools.call import BlockReader, CallEnd, CallEvent, NotACall
from mlx_server.parsers.tools.held_block import HeldBlock

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
    and its whole text comes as content. Without tools, or without a format, no text is a call.
    `is_reasoning` tells that the prompt has opened the reasoning.
    """

    def __init__(
        self,
        tool_format: str | None,
        tools: Sequence[Mapping[str, Any]] = (),
        reasoning_format: str | None = None,
        is_reasoning: bool = False,
    ) -> None:
        self._output: HarmonyOutput | _MarkedOutput
        if HARMONY in (tool_format, reasoning_format):
            self._output = HarmonyOutput(
                tools if tool_format == HARMONY else (),
                is_reasoning=is_reasoning,
                tells_reasoning=reasoning_format is not None,
            )
        else:
            self._output = _MarkedOutput(tool_format, tools, reasoning_format, is_reasoning)

    @property
    def num_tool_calls(self) -> int:
        """Those that are complete."""
        return self._output.num_tool_calls

    @property
    def is_reasoning(self) -> bool:
        """Whether the text that comes next belongs to the reasoning."""
        return self._output.is_reasoning

    def feed(self, text: str) -> list[OutputDelta]:
        return self._output.feed(text)

    def finish(self) -> list[OutputDelta]:
        """The text is over; nothing may be fed after this."""
        return self._output.finish()


class _MarkedOutput:
    """An answer in which marks stand around reasoning and calls."""

    def __init__(
        self,
        tool_format: str | None,
        tools: Sequence[Mapping[str, Any]],
        reasoning_format: str | None,
        is_reasoning: bool,
    ) -> None:
        self._tools = tools
        self._format = TOOL_FORMATS[tool_format] if tool_format is not None and tools else None
        self._segmenter = (
            make_segmenter(reasoning_format, is_reasoning=is_reasoning)
            if reasoning_format is not None
            else None
        )
        self._splitter = MarkerSplitter(*self._format.readers if self._format else ())
        self._block: BlockReader | None = None
        self._is_in_reasoning = False  # what is being read, which lags behind the segmenter
        self._writer = DeltaWriter()

    @property
    def num_tool_calls(self) -> int:
        return self._writer.num_tool_calls

    @property
    def is_reasoning(self) -> bool:
        return self._segmenter is not None and self._segmenter.is_reasoning

    def feed(self, text: str) -> list[OutputDelta]:
        if self._segmenter is None:
            self._read(text)
        else:
            self._read_segments(self._segmenter.feed(text))
        return self._writer.take()

    def finish(self) -> list[OutputDelta]:
        if self._segmenter is not None:
            self._read_segments(self._segmenter.finish())
        self._end_part()
        self._writer.finish()
        return self._writer.take()

    def _read_segments(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if segment.kind is Kind.MARK:
                self._end_part()
                self._writer.end_reasoning()
            else:
                self._is_in_reasoning = segment.kind is Kind.REASONING
                self._read(segment.text)

    def _end_part(self) -> None:
        """No call goes on from reasoning into content or back."""
        if self._block is not None:
            self._report(self._block.finish())
            self._block = None
        else:
            self._add(self._splitter.finish())

    def _read(self, text: str) -> None:
        rest: str | None = text
        while rest:
            rest = self._read_text(rest) if self._block is None else self._read_block(rest)

    def _read_text(self, text: str) -> str | None:
        """Read up to the next block; return the text behind its start marker."""
        split = self._splitter.feed(text)
        self._add(split.before)
        if split.behind is not None:
            self._block = self._make_reader(split.marker)
        return split.behind

    def _make_reader(self, start: str) -> BlockReader:
        assert self._format is not None
        reader = self._format.readers[start](self._tools)
        return HeldBlock(reader, start, self._tools) if self._is_in_reasoning else reader

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
            if isinstance(event, NotACall):
                self._add(event.text)
                continue
            self._writer.call(event)
            if isinstance(event, CallEnd) and self._is_in_reasoning:
                self._writer.end_reasoning()

    def _add(self, text: str) -> None:
        if self._is_in_reasoning:
            self._writer.reasoning(text)
        else:
            self._writer.content(text)
