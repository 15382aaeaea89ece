"""Reads the messages of harmony, the format of gpt-oss, as they come.

An answer is one message or several; each has a header, which names its channel and whom it is for,
and a body. Models leave out end marks and put the parts of a header in any order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from mlx_server.parsers.harmony_marks import (
    CHANNEL,
    CONSTRAIN,
    ENDS,
    MARKS,
    MESSAGE,
    START,
)
from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.segments import Kind, Segment

RECIPIENT = "to="

CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*([^\s<]+)")
RECIPIENT_NAME = re.compile(re.escape(RECIPIENT) + r"([^\s<]+)")
OTHER_ROLE = re.compile(r"\s*(?!assistant\b|to=)([^\s<]+)")


@dataclass(frozen=True, slots=True, eq=False)
class HarmonyMessage:
    """`recipient` is a tool, None for what is meant for the user or for the model itself."""

    channel: str = "final"
    recipient: str | None = None

    @property
    def is_reasoning(self) -> bool:
        return self.channel == "analysis"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of a message's body, or what stands between two bodies.

    Every message begins with an empty piece.
    """

    text: str
    message: HarmonyMessage | None = None


class _State(Enum):
    BETWEEN = auto()  # where a message may begin
    HEADER = auto()
    BODY = auto()


class HarmonyReader:
    """The pieces join to the text. Text without a header is a message to the user."""

    def __init__(self, *, is_reasoning: bool) -> None:
        self._state = _State.BODY if is_reasoning else _State.BETWEEN
        self._held = ""  # of a header, or of what may be the beginning of one
        self._message = HarmonyMessage("analysis")
        self._has_begun = is_reasoning
        self._splitter = MarkerSplitter(*MARKS)
        self._pieces: list[Piece] = []

    @property
    def message(self) -> HarmonyMessage | None:
        """The message that is being read, None between two of them."""
        return self._message if self._state is _State.BODY else None

    def feed(self, text: str) -> Sequence[Piece]:
        rest: str | None = text
        while rest:
            if self._state is _State.BETWEEN:
                rest = self._read_between(rest)
            elif self._state is _State.HEADER:
                rest = self._read_header(rest)
            else:
                rest = self._read_body(rest)
        return self._take()

    def finish(self) -> Sequence[Piece]:
        if self._state is _State.BODY:
            self._add(self._splitter.finish(), self._message)
        elif self._state is _State.BETWEEN:
            self._add(self._held, None if self._is_gap(self._held) else HarmonyMessage())
        else:
            self._add(self._held + self._splitter.finish())
        return self._take()

    def _read_between(self, text: str) -> str | None:
        text = self._held + text
        self._held = ""
        begun = text.lstrip()
        for mark in (*MARKS, RECIPIENT):
            if begun.startswith(mark):
                self._add(text[: len(text) - len(begun)])
                self._read_mark(mark)
                return begun[len(mark) :]
        if any(mark.startswith(begun) for mark in (*MARKS, RECIPIENT)):
            self._held = text
            return None
        if self._is_gap(text[: len(text) - len(begun)]):
            self._add(text[: len(text) - len(begun)])
            text = begun
        self._begin(HarmonyMessage())
        return text

    def _is_gap(self, text: str) -> bool:
        """Whether this is white space that does not belong to the message behind it."""
        return self._has_begun and not text.strip()

    def _read_header(self, text: str) -> str | None:
        split = self._splitter.feed(text)
        self._held += split.before
        if split.behind is not None:
            self._read_mark(split.marker)
        return split.behind

    def _read_body(self, text: str) -> str | None:
        split = self._splitter.feed(text)
        self._add(split.before, self._message)
        if split.behind is not None:
            self._read_mark(split.marker)
        return split.behind

    def _read_mark(self, mark: str) -> None:
        self._has_begun = True
        is_header = self._state is _State.HEADER
        if mark in (CHANNEL, CONSTRAIN, RECIPIENT) and is_header:
            self._held += mark
        elif mark in (START, CHANNEL, RECIPIENT):
            self._add(self._held)
            self._held = mark
            self._state = _State.HEADER
        elif mark == MESSAGE and is_header:
            self._add(self._held + mark)
            header, self._held = self._held, ""
            self._begin(message_of(header))
        else:
            self._add(self._held + mark)
            self._held = ""
            if mark in ENDS:
                self._state = _State.BETWEEN

    def _begin(self, message: HarmonyMessage) -> None:
        self._message = message
        self._state = _State.BODY
        self._pieces.append(Piece("", message))

    def _add(self, text: str, message: HarmonyMessage | None = None) -> None:
        if text:
            self._pieces.append(Piece(text, message))

    def _take(self) -> Sequence[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def message_of(header: str) -> HarmonyMessage:
    """What the header says, from its first mark up to the mark of the body."""
    if header.startswith(START) and OTHER_ROLE.match(header, len(START)):
        # the model goes on as somebody else: what it imagines there is no answer
        return HarmonyMessage("analysis")
    channels = CHANNEL_NAME.findall(header)
    recipient = RECIPIENT_NAME.search(header)
    return HarmonyMessage(
        channel=channels[-1] if channels else "final",
        recipient=recipient[1] if recipient and recipient[1] != "assistant" else None,
    )


class HarmonySegmenter:
    """What of a text is reasoning; calls count as marks."""

    def __init__(self, *, is_reasoning: bool) -> None:
        self._reader = HarmonyReader(is_reasoning=is_reasoning)

    @property
    def is_reasoning(self) -> bool:
        message = self._reader.message
        return message is not None and message.is_reasoning and message.recipient is None

    def feed(self, text: str) -> Sequence[Segment]:
        return [segment_of(piece) for piece in self._reader.feed(text) if piece.text]

    def finish(self) -> Sequence[Segment]:
        return [segment_of(piece) for piece in self._reader.finish() if piece.text]


def segment_of(piece: Piece) -> Segment:
    if piece.message is None or piece.message.recipient is not None:
        return Segment(Kind.MARK, piece.text)
    return Segment(Kind.REASONING if piece.message.is_reasoning else Kind.REST, piece.text)
