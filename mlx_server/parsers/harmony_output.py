"""Splits an answer in harmony into reasoning, content and tool calls while it is being written."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_server.parsers.delta_writer import DeltaWriter
from mlx_server.parsers.deltas import OutputDelta
from mlx_server.parsers.harmony import HarmonyMessage, HarmonyReader, Piece
from mlx_server.parsers.tools.call import CallEvent, NotACall, Tools
from mlx_server.parsers.tools.harmony_call import CallBody, function_of

PARAGRAPH = "\n\n"


class HarmonyOutput:
    """No mark and no header is ever shown.

    A message that should be a call and is none comes as content. If it does not tell
    reasoning apart, that is content as well; without `tools` no message is a call.
    """

    def __init__(self, tools: Tools, *, is_reasoning: bool, tells_reasoning: bool) -> None:
        self._tools = tools
        self._tells_reasoning = tells_reasoning
        self._reader = HarmonyReader(is_reasoning=is_reasoning)
        self._call: CallBody | None = None
        self._message: HarmonyMessage | None = None
        self._has_content = False
        self._gap = ""  # between two messages of content
        self._writer = DeltaWriter()

    @property
    def num_tool_calls(self) -> int:
        return self._writer.num_tool_calls

    @property
    def is_reasoning(self) -> bool:
        return self._is_reasoning(self._reader.message)

    def feed(self, text: str) -> list[OutputDelta]:
        for piece in self._reader.feed(text):
            self._read(piece)
        return self._writer.take()

    def finish(self) -> list[OutputDelta]:
        for piece in self._reader.finish():
            self._read(piece)
        if self._call is not None:
            self._report(self._call.finish())
        self._writer.finish()
        return self._writer.take()

    def _read(self, piece: Piece) -> None:
        if piece.message is not self._message:
            self._end_message()
            self._begin_message(piece.message)
        if self._call is not None:
            self._report(self._call.feed(piece.text))
        elif self._is_reasoning(piece.message):
            self._writer.reasoning(piece.text)
        elif piece.message is not None:
            self._add_content(piece.text)

    def _begin_message(self, message: HarmonyMessage | None) -> None:
        self._message = message
        name = self._function_of(message)
        self._call = None if name is None else CallBody(name)

    def _end_message(self) -> None:
        if self._call is not None:
            self._report(self._call.finish())
        elif self._is_reasoning(self._message):
            self._writer.end_reasoning()
        elif self._has_content:
            self._gap = PARAGRAPH

    def _function_of(self, message: HarmonyMessage | None) -> str | None:
        if message is None or message.recipient is None or not self._tools:
            return None
        return function_of(message.recipient, self._tools)

    def _is_reasoning(self, message: HarmonyMessage | None) -> bool:
        if message is None or not (message.is_reasoning and self._tells_reasoning):
            return False
        return self._function_of(message) is None

    def _report(self, events: Sequence[CallEvent]) -> None:
        for event in events:
            if isinstance(event, NotACall):
                self._add_content(event.text)
            else:
                self._writer.call(event)

    def _add_content(self, text: str) -> None:
        if self._gap and (text := text.lstrip()):
            text, self._gap = self._gap + text, ""
        self._has_content = self._has_content or bool(text)
        self._writer.content(text)
