"""What a text is made of before anybody looks for calls in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol


class Kind(Enum):
    REASONING = auto()
    REST = auto()
    MARK = auto()  # between the two, and part of neither


@dataclass(frozen=True, slots=True)
class Segment:
    kind: Kind
    text: str


class Segmenter(Protocol):
    """The segments of an answer join to its text; their kinds do not depend on how it was cut."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the text that comes next belongs to the reasoning."""
        ...

    def feed(self, text: str) -> Sequence[Segment]: ...

    def finish(self) -> Sequence[Segment]:
        """The text is over: what was held back was no tag."""
        ...
