"""Makes deltas of what was read, and looks after the white space where parts of an answer meet."""

from __future__ import annotations

from secrets import token_hex

from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.parsers.tools.call import CallArguments, CallEnd, CallHead


class DeltaWriter:
    """Reasoning begins and ends without white space, and so does what follows it begin.

    Further blocks of reasoning begin on a line of their own. White space behind a call waits until
    it is known to be more than the gap to the next.
    """

    def __init__(self) -> None:
        self.num_tool_calls = 0
        self._index = -1  # of the latest call
        self._gap: str | None = None  # white space behind a call, None once content followed it
        self._follows_reasoning = False  # and no content has come since
        self._reasons = False  # a block of reasoning has text
        self._has_reasoned = False
        self._space = ""  # the newest of the reasoning
        self._deltas: list[OutputDelta] = []

    def content(self, text: str) -> None:
        if self._follows_reasoning:
            text = text.lstrip()
            self._follows_reasoning = not text
        if self._gap is not None:
            text = self._gap + text
            self._gap = None if text.strip() else text
        if text and self._gap is None:
            self._deltas.append(ContentDelta(text))

    def reasoning(self, text: str) -> None:
        if not self._reasons:
            text = text.lstrip()
            if not text:
                return
            text = "\n" + text if self._has_reasoned else text
            self._reasons = self._has_reasoned = True
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            self._deltas.append(ReasoningDelta(shown))

    def end_reasoning(self) -> None:
        self._space = ""
        self._reasons = False
        self._follows_reasoning = True

    def call(self, event: CallHead | CallArguments | CallEnd) -> None:
        match event:
            case CallHead(name):
                self._index += 1
                self._deltas.append(ToolCallStart(self._index, new_call_id(), name))
            case CallArguments(text):
                self._deltas.append(ToolCallArguments(self._index, text))
            case CallEnd():
                self.num_tool_calls += 1
                self._gap = ""

    def finish(self) -> None:
        """The answer is over; reasoning that was cut off keeps its last white space."""
        if self._space:
            self._deltas.append(ReasoningDelta(self._space))

    def take(self) -> list[OutputDelta]:
        """What has come since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas


def new_call_id() -> str:
    return f"call_{token_hex(12)}"
