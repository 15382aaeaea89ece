"""Reads a block of calls that can only be understood as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlx_server.parsers.marker import length_of_possible_start
from mlx_server.parsers.tools.call import (
    BlockNews,
    CallEvent,
    MalformedCall,
    NotACall,
    ParsedCall,
    Tools,
    whole_call,
)

Parse = Callable[[str, Tools], list[ParsedCall]]
FindEnd = Callable[[str], int]
"""Where the end marker of the block stands in its text, -1 while it has none.

It is called with a text that only grows, and what it finds may not depend on how that came.
"""


class WholeBlockReader:
    def __init__(
        self, markers: tuple[str, str], parse: Parse, tools: Tools, find_end: FindEnd | None = None
    ) -> None:
        self._start_marker, self._end_marker = markers
        self._parse = parse
        self._tools = tools
        self._find_end = find_end or self._find_marker
        self._text = ""

    def feed(self, text: str) -> BlockNews:
        seen = len(self._text)
        self._text += text
        # looking for the end takes time, and without a marker in the new text there is none
        if self._text.find(self._end_marker, max(0, seen - len(self._end_marker) + 1)) < 0:
            return BlockNews(())
        end = self._find_end(self._text)
        if end < 0:
            return BlockNews(())
        behind = end + len(self._end_marker)
        return BlockNews(self._read(self._text[:end], self._text[:behind]), self._text[behind:])

    def finish(self) -> Sequence[CallEvent]:
        begun_marker = length_of_possible_start(self._text, self._end_marker)
        return self._read(self._text[: len(self._text) - begun_marker], self._text)

    def _find_marker(self, text: str) -> int:
        return text.find(self._end_marker)

    def _read(self, block: str, raw: str) -> Sequence[CallEvent]:
        try:
            calls = self._parse(block, self._tools)
        except MalformedCall:
            return [NotACall(self._start_marker + raw)]
        if not calls:
            return [NotACall(self._start_marker + raw)]
        return [event for call in calls for event in whole_call(call)]
