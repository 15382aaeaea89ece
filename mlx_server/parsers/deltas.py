"""What an answer is made of, in the order in which it is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """Call `index` begins; its arguments follow as `ToolCallArguments` of the same index."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of JSON text.

    The pieces of a complete call join to a JSON object, those of a call that broke off never do.
    """

    index: int
    text: str


OutputDelta = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments
