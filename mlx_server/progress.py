"""How far a long task is, on the terminal: a bar that is redrawn, or lines where output is kept."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

Report = Callable[[str, int, int], None]
"""Takes (stage, done, total); both numbers are bytes where they are large."""

BAR_WIDTH = 30
PERCENT_PER_LINE = 10
MB = 1_000_000


class TerminalProgress:
    """A `Report` that draws on standard error or `stream`.

    As a context manager it leaves the cursor at the start of a line, whatever happens.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._redraws = self._stream.isatty()
        self._last: tuple[str, object] | None = None
        self._line = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        percent = 100 * done // total if 0 <= done < total else 100
        amount = _amount(percent, done, total)
        visible = (stage, amount if self._redraws else percent // PERCENT_PER_LINE)
        if visible == self._last:
            return
        if self._last is not None and self._last[0] != stage:
            self._end_line()
        self._last = visible
        if self._redraws:
            self._draw(f"{stage:<10} {_bar(percent)} {amount}")
        else:
            self._write(f"{stage} {amount}\n")
        if percent == 100:
            self._end_line()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_line()

    def _draw(self, line: str) -> None:
        # blanks over what a longer line leaves behind; a line of the log may write over the bar
        self._write(f"{line:<{len(self._line)}}\r")
        self._line = line

    def _end_line(self) -> None:
        if self._line:
            self._write("\n")
            self._line = ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _bar(percent: int) -> str:
    num_filled = BAR_WIDTH * percent // 100
    return f"[{'#' * num_filled:.<{BAR_WIDTH}}]"


def _amount(percent: int, done: int, total: int) -> str:
    if total < MB:
        return f"{percent:3} %"
    return f"{percent:3} %, {done / MB:.0f} of {total / MB:.0f} MB"
