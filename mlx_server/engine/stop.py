"""Stop strings: finds the one that is complete first in growing text and never lets any part of it
out.
"""

from __future__ import annotations


class StopMatcher:
    """Feed text as it comes; what is returned is safe to send.

    Once `is_stopped`, nothing more comes out; `matched` is then the string that was complete.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        self._stop = stop
        self._held = ""
        self.matched: str | None = None

    @property
    def is_stopped(self) -> bool:
        return self.matched is not None

    def feed(self, text: str) -> str:
        if not self._stop:
            return text
        if self.is_stopped:
            return ""
        self._held += text
        # first by its end, so that the result is the same however the text is cut into pieces
        places = ((stop, self._held.find(stop)) for stop in self._stop)
        found = [(at + len(stop), at, stop) for stop, at in places if at >= 0]
        if found:
            _, start, self.matched = min(found)
            safe, self._held = self._held[:start], ""
            return safe
        keep = self._length_of_possible_start()
        cut = len(self._held) - keep
        safe, self._held = self._held[:cut], self._held[cut:]
        return safe

    def finish(self) -> str:
        """The sequence ended for another reason: what was held back was no stop string."""
        safe, self._held = self._held, ""
        return safe

    def _length_of_possible_start(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max(map(len, self._stop)) - 1
        for size in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-size:]
            if any(stop.startswith(tail) for stop in self._stop):
                return size
        return 0
