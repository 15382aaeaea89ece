"""Reads a block of calls in steps, each of which takes a piece of the text or waits for more."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from mlx_server.parsers.json_scanner import WHITE_SPACE, end_of_run
from mlx_server.parsers.tools.call import (
    BlockNews,
    CallArguments,
    CallEnd,
    CallEvent,
    CallHead,
    NotACall,
)
from mlx_server.parsers.tools.tag_marks import Head

MAX_HEAD_CHARS = 1024


class SteppedBlock:
    """What is common to such readers; `block_end` may be empty.

    A step returns whether there may be another. Where the format is broken the block is left, and
    the text goes on with the first mark that does not fit.
    """

    def __init__(self, start_marker: str, block_end: str) -> None:
        self.text = ""
        self.at = 0
        self.rest: str | None = None
        self.events: list[CallEvent] = []
        self.step: Callable[[], bool] = self.leave
        self._block_end = block_end
        self._raw = [start_marker]  # since the last complete call
        self._has_calls = False

    def feed(self, text: str) -> BlockNews:
        self.text = self.text[self.at :] + text
        self.at = 0
        while self.rest is None and self.step():
            pass
        events, self.events = self.events, []
        return BlockNews(events, self.rest)

    def finish(self) -> Sequence[CallEvent]:
        left = self.text[self.at :]
        if self._has_calls and not self._raw and self._block_end.startswith(left.strip()):
            return []
        return [NotACall("".join(self._raw) + left)]

    def begin_call(self, name: str) -> None:
        self.events.append(CallHead(name))

    def add_arguments(self, text: str) -> None:
        if text:
            self.events.append(CallArguments(text))

    def complete_call(self) -> None:
        self.events.append(CallEnd())
        self._raw.clear()
        self._has_calls = True

    def complete_list(self) -> None:
        """The bracket behind calls was taken, which is no part of what may be broken."""
        if self._has_calls:
            self._raw.clear()

    def end(self) -> bool:
        """The end mark of the block was taken."""
        if not self._has_calls:
            self.events.append(NotACall("".join(self._raw)))
        self.rest = self.text[self.at :]
        return False

    def leave(self) -> bool:
        """What comes is no part of the block."""
        if self._raw:
            self.events.append(NotACall("".join(self._raw)))
        self.rest = self.text[self.at :]
        return False

    def mark(self, *marks: str) -> str | None:
        """Take the mark that comes; "" if none does, None while that cannot be told."""
        start = end_of_run(WHITE_SPACE, self.text, self.at)
        begun = self.text[start : start + max(map(len, marks))]
        if any(mark.startswith(begun) and mark != begun for mark in marks):
            return None
        found = max((m for m in marks if m and begun.startswith(m)), key=len, default="")
        if found:
            self.take(start + len(found))
        return found

    def head(self, head: Head) -> re.Match[str] | None:
        """Take the head that comes, whose start was taken.

        None while it goes on, and when there is none: then the block was left.
        """
        start = end_of_run(WHITE_SPACE, self.text, self.at)
        last = start + MAX_HEAD_CHARS
        boundary = head.boundary.search(self.text, start, last)
        if boundary is None:
            if len(self.text) >= last:
                self.leave()
            return None
        end = boundary.start()
        if self.text.startswith(head.end, end):
            match = head.pattern.fullmatch(self.text, start, end)
            if match is not None:
                self.take(end + len(head.end))
                return match
        elif head.end.startswith(self.text[end:]):
            return None
        self.leave()
        return None

    def take(self, end: int) -> None:
        self._raw.append(self.text[self.at : end])
        self.at = end
