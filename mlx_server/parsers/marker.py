"""Finds markers in growing text and holds back no more than what may be the beginning of one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """`before` is certainly not part of a marker.

    `behind` is what follows the marker, None if there was none.
    """

    before: str
    behind: str | None = None
    marker: str = ""


class MarkerSplitter:
    """Finds the first of its markers, none of which may be part of another; it may have none."""

    def __init__(self, *markers: str) -> None:
        self._markers = markers
        self._held = ""

    def feed(self, text: str) -> Split:
        text = self._held + text
        self._held = ""
        found = [(at, marker) for marker in self._markers if (at := text.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            return Split(text[:at], text[at + len(marker) :], marker)
        size = max((length_of_possible_start(text, marker) for marker in self._markers), default=0)
        if size:
            self._held = text[-size:]
            return Split(text[:-size])
        return Split(text)

    def finish(self) -> str:
        """The text ends: what was held back was no marker."""
        held, self._held = self._held, ""
        return held


def length_of_possible_start(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker` but is not all of it."""
    at = text.find(marker[0], max(0, len(text) - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return len(text) - at
        at = text.find(marker[0], at + 1)
    return 0
