"""Reads a block of calls whose heads are no JSON and whose arguments are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mlx_server.parsers.json_scanner import WHITE_SPACE, JsonScanner, end_of_run
from mlx_server.parsers.tools.call import CallArguments, CallEnd, CallEvent, CallHead
from mlx_server.parsers.tools.stepped_block import SteppedBlock


class JsonArgumentsBlock(SteppedBlock, ABC):
    """`call_ends` are the marks that close a call, of which some may be missing but not all.

    Without any a call ends with its last brace. Until a call has ended, that brace stays here.
    """

    def __init__(self, start_marker: str, block_end: str, call_ends: Sequence[str]) -> None:
        super().__init__(start_marker, block_end)
        self._call_ends = call_ends
        self._ends_left: Sequence[str] = ()
        self._head = CallHead("")
        self._scanner = JsonScanner()
        self._last = ""  # of the arguments, once they are complete

    @abstractmethod
    def next_call(self) -> bool:
        """The step behind a call."""

    def finish(self) -> Sequence[CallEvent]:
        left = self.text[self.at :].strip()
        if self._last and any(end.startswith(left) for end in (*self._ends_left, "")):
            return [CallArguments(self._last), CallEnd()]
        return super().finish()

    def expect_arguments(self, name: str, call_id: str | None = None) -> bool:
        self._head = CallHead(name, call_id)
        self.step = self._begin_arguments
        return True

    def _begin_arguments(self) -> bool:
        start = end_of_run(WHITE_SPACE, self.text, self.at)
        if start == len(self.text):
            return False
        self._ends_left = self._call_ends
        if self.text[start] != "{":
            return self._without_arguments()
        self.take(start)
        self.events.append(self._head)
        self._scanner = JsonScanner()
        self.step = self._read_arguments
        return True

    def _without_arguments(self) -> bool:
        end = self.mark(*self._call_ends) if self._call_ends else ""
        if not end:
            return self.leave() if end == "" else False
        self.events.append(self._head)
        self._last = "{}"
        return self._pass_end(end)

    def _read_arguments(self) -> bool:
        scanned = self._scanner.feed(self.text, self.at)
        self.take(scanned.end)
        new = scanned.text
        if self._scanner.is_complete:
            new, self._last = new[:-1], new[-1]
        self.add_arguments(new)
        if self._scanner.is_broken:
            return self.leave()
        self.step = self._read_end if self._scanner.is_complete else self._read_arguments
        return self._scanner.is_complete

    def _read_end(self) -> bool:
        if not self._ends_left:
            self.add_arguments(self._last)
            self._last = ""
            self.complete_call()
            self.step = self.next_call
            return True
        end = self.mark(*self._ends_left)
        if not end:
            return self.leave() if end == "" else False
        return self._pass_end(end)

    def _pass_end(self, end: str) -> bool:
        self._ends_left = self._ends_left[self._ends_left.index(end) + 1 :]
        self.step = self._read_end
        return True
