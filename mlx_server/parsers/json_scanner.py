"""Reads one JSON value as it comes, knows where it ends and repairs the strings in it.

Models write regular expressions and paths without doubling the backslash, and line breaks as they
are. Both have only one reading, so they are put right; whatever else is no JSON breaks the value.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import Enum, auto

# Deeper values, and longer integers, are valid JSON that common parsers refuse to read.
MAX_DEPTH = 128
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,1023})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
LITERALS = frozenset({"true", "false", "null"})

WHITE_SPACE = re.compile(r"[ \t\r\n]*")
SCALAR = re.compile(r"[a-z0-9.+E-]*")
PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
LEGAL_ESCAPES = frozenset('"\\/bfnrt')
HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
CLOSING = {"{": "}", "[": "]"}


def end_of_run(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where a run of `pattern`, which may be empty, ends."""
    match = pattern.match(text, at)
    assert match is not None
    return match.end()


class _Expect(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    COMMA = auto()
    SCALAR = auto()
    STRING = auto()


@dataclass(frozen=True, slots=True)
class Scanned:
    """The repaired text, and where in the piece that was fed the scanner stopped."""

    text: str
    end: int


class JsonScanner:
    """Reads one value; what comes out does not depend on how the text was cut.

    A number or a word ends only with the character behind it. When `is_broken`, the character at
    which the scanner stopped is the one that cannot be there.
    """

    def __init__(self) -> None:
        self.is_complete = False
        self.is_broken = False
        self._expect = _Expect.VALUE
        self._open: list[str] = []
        self._held = ""  # a scalar or an escape that has not come to its end
        self._is_key = False
        self._out: list[str] = []

    @property
    def is_in_string(self) -> bool:
        return self._expect is _Expect.STRING

    def feed(self, text: str, start: int = 0) -> Scanned:
        at = start
        while at < len(text) and not (self.is_complete or self.is_broken):
            if self._expect is _Expect.STRING:
                at = self._in_string(text, at)
            elif self._expect is _Expect.SCALAR:
                at = self._in_scalar(text, at)
            else:
                at = self._between(text, at)
        scanned = Scanned("".join(self._out), at)
        self._out.clear()
        return scanned

    def _between(self, text: str, at: int) -> int:
        end = end_of_run(WHITE_SPACE, text, at)
        self._out.append(text[at:end])
        if end == len(text):
            return end
        char = text[end]
        if self._expect in (_Expect.VALUE, _Expect.FIRST_ITEM):
            return self._begin_value(char, end)
        if self._expect in (_Expect.KEY, _Expect.FIRST_KEY):
            return self._begin_key(char, end)
        if self._expect is _Expect.COLON:
            return self._take(char, end, _Expect.VALUE) if char == ":" else self._break(end)
        if char == ",":
            return self._take(char, end, _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE)
        return self._close(char, end)

    def _begin_value(self, char: str, at: int) -> int:
        if char == "]" and self._expect is _Expect.FIRST_ITEM:
            return self._close(char, at)
        if char in CLOSING:
            if len(self._open) == MAX_DEPTH:
                return self._break(at)
            self._open.append(char)
            return self._take(char, at, _Expect.FIRST_KEY if char == "{" else _Expect.FIRST_ITEM)
        if char == '"':
            self._is_key = False
            return self._take(char, at, _Expect.STRING)
        if SCALAR.fullmatch(char):
            self._expect = _Expect.SCALAR
            return at
        return self._break(at)

    def _begin_key(self, char: str, at: int) -> int:
        if char == '"':
            self._is_key = True
            return self._take(char, at, _Expect.STRING)
        if char == "}" and self._expect is _Expect.FIRST_KEY:
            return self._close(char, at)
        return self._break(at)

    def _close(self, char: str, at: int) -> int:
        if char != CLOSING[self._open[-1]]:
            return self._break(at)
        self._open.pop()
        self._out.append(char)
        self._end_value()
        return at + 1

    def _in_scalar(self, text: str, at: int) -> int:
        end = end_of_run(SCALAR, text, at)
        self._held += text[at:end]
        if end == len(text):
            return end
        if self._held not in LITERALS and not NUMBER.fullmatch(self._held):
            return self._break(end)
        self._out.append(self._held)
        self._held = ""
        self._end_value()
        return end

    def _in_string(self, text: str, at: int) -> int:
        if self._held:
            return self._in_escape(text[at], at)
        end = end_of_run(PLAIN, text, at)
        self._out.append(text[at:end])
        if end == len(text):
            return end
        char = text[end]
        if char == '"':
            self._out.append(char)
            self._end_string()
        elif char == "\\":
            self._held = char
        else:
            self._out.append(json.dumps(char)[1:-1])
        return end + 1

    def _in_escape(self, char: str, at: int) -> int:
        if self._held == "\\" and char in LEGAL_ESCAPES:
            return self._end_escape(self._held + char, at + 1)
        if self._held == "\\" and char == "'":
            return self._end_escape(char, at + 1)
        if char == "u" if self._held == "\\" else char in HEX_DIGITS:
            self._held += char
            return self._end_escape(self._held, at + 1) if len(self._held) == 6 else at + 1
        return self._end_escape("\\" + self._held, at)

    def _end_escape(self, text: str, at: int) -> int:
        self._out.append(text)
        self._held = ""
        return at

    def _end_string(self) -> None:
        if self._is_key:
            self._expect = _Expect.COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        self.is_complete = not self._open
        self._expect = _Expect.COMMA

    def _take(self, char: str, at: int, then: _Expect) -> int:
        self._out.append(char)
        self._expect = then
        return at + 1

    def _break(self, at: int) -> int:
        self.is_broken = True
        return at
