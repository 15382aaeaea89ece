"""The marks between which a tool format that is written in tags puts names and values."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.tools.typed_text import TypedText
from mlx_server.parsers.tools.value_schema import STRING, ValueSchema

NEXT_TAG = re.compile(r"[<>]")
NEXT_TAG_OR_LINE = re.compile(r"[<>\n]")
WORD = r"""[^\s<>{}"'=]+"""
EQUALS = re.compile(rf"""[ \t]*=\s*(?P<quote>["']?)(?P<name>{WORD})(?P=quote)\s*""")
ATTRIBUTES = re.compile(
    rf"""[^<>]*?\bname\s*=\s*(?P<quote>["']?)(?P<name>{WORD})(?P=quote)"""
    r"""(?:[^<>]*?\bstring\s*=\s*["'](?P<is_text>true|false)["'])?[^<>]*"""
)
LINE = re.compile(rf"(?P<name>{WORD})[ \t\r]*")
ANYTHING = re.compile(r"\s*(?P<name>\S(?:.*\S)?)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Head:
    """What names a call or a value: `start`, what `pattern` finds the name in, `end`.

    `boundary` finds where it ends or breaks off: without an `end`, with its line or the next tag.
    `written` is the whole of it, with {name} in it, and {is_text} if it says whether the value is a
    bare string.
    """

    start: str
    end: str
    pattern: re.Pattern[str]
    written: str
    boundary: re.Pattern[str] = NEXT_TAG_OR_LINE


@dataclass(frozen=True, slots=True)
class ValuePiece:
    """JSON of the value as far as it is known; what follows the value, None while it goes on."""

    json: str
    behind: str | None = None


class ValueReader(Protocol):
    def feed(self, text: str) -> ValuePiece: ...


class TagValueReader:
    """Reads a value up to its end mark; one within a string of JSON does not end it."""

    def __init__(self, end: str, types: frozenset[str], *, has_own_line: bool = False) -> None:
        self._end = end
        self._splitter = MarkerSplitter(end)
        self._typed = TypedText(types, has_own_line=has_own_line)

    def feed(self, text: str) -> ValuePiece:
        split = self._splitter.feed(text)
        found = self._typed.add(split.before)
        while split.behind is not None:
            if not self._typed.is_in_json_string:
                return ValuePiece(found + self._typed.finish(), split.behind)
            found += self._typed.add(self._end)
            split = self._splitter.feed(split.behind)
            found += self._typed.add(split.before)
        return ValuePiece(found)


def types_said(schema: ValueSchema, says_text: bool | None) -> frozenset[str]:
    """The types of the schema, narrowed by what the call itself says where it can be either."""
    types = schema.types
    if says_text is None or "string" not in types or types == STRING:
        return types
    return STRING if says_text else types


MakeValue = Callable[[str, ValueSchema], ValueReader]
"""(end mark, schema of the value) -> what reads it"""


@dataclass(frozen=True, slots=True)
class TagMarks:
    """`{key}` in `value_end` is the name of the value, which a model wraps in `wrapping`.

    Without `call_end` a block holds one call, which ends with it; without `block_start` calls
    stand alone. `shares_block`: all calls of an answer go into one block. `has_own_line`: values
    stand between two line breaks that are no part of them.
    """

    block_start: str
    block_end: str
    call: Head
    call_end: str
    key: Head
    value_end: str
    value_start: str = ""
    has_own_line: bool = False
    shares_block: bool = False
    wrapping: tuple[str, str] = ("", "")
    make_value: MakeValue | None = None

    def value_reader(self, key: str, schema: ValueSchema, says_text: bool | None) -> ValueReader:
        """`says_text`: whether the call itself says that the value is a bare string."""
        end = self.value_end.format(key=key)
        if self.make_value is not None:
            return self.make_value(end, schema)
        types = types_said(schema, says_text)
        return TagValueReader(end, types, has_own_line=self.has_own_line)
