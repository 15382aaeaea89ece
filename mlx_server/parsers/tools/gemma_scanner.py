"""Reads the arguments of Gemma's calls, `{key:value,...}`, as they come, and says them in JSON."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from mlx_server.parsers.json_scanner import MAX_DEPTH, WHITE_SPACE, Scanned, end_of_run
from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.tools.call import to_json
from mlx_server.parsers.tools.typed_text import TypedText, json_of
from mlx_server.parsers.tools.value_schema import STRING, ValueSchema

END_OF_KEY = re.compile(r"[:,{}\[\]<\n]")
END_OF_BARE = re.compile(r"[,{}\[\]<\n]")


@dataclass(slots=True)
class Open:
    """An object or a list that is not closed; `keys` are those that an object has so far."""

    closing: str
    schema: ValueSchema
    keys: set[str] = field(default_factory=set)
    num_members: int = 0
    member: ValueSchema | None = None


class GemmaScanner:
    """Fed from behind the first brace to the last.

    `quote` stands before and after a string. Bare values are JSON if they can be, else strings.
    """

    def __init__(self, quote: str, schema: ValueSchema) -> None:
        self.is_complete = False
        self.is_broken = False
        self._quote = quote
        self._open = [Open("}", schema)]
        self._text = ""
        self._at = 0
        self._out = ["{"]
        self._step: Callable[[], bool] = self._next_member
        self._splitter = MarkerSplitter(quote)
        self._typed = TypedText(STRING)

    def feed(self, text: str, start: int) -> Scanned:
        """What lies behind the end that it returns must be fed again, with what follows."""
        self._text = text
        self._at = start
        while not (self.is_complete or self.is_broken) and self._step():
            pass
        found = "".join(self._out)
        self._out.clear()
        return Scanned(found, self._at)

    def _next_member(self) -> bool:
        """At the beginning of a member, or at the end of the object or list."""
        at = self._skip_space()
        inner = self._open[-1]
        if at == len(self._text):
            return False
        if self._text[at] == inner.closing:
            return self._close(at)
        if inner.closing == "]":
            inner.member = inner.schema.items()
            return self._go(at, self._begin_value)
        if self._has_quote(at) is None:
            return False
        return self._read_key(at)

    def _read_key(self, at: int) -> bool:
        start = at + len(self._quote) if self._has_quote(at) else at
        end = self._text.find(self._quote, start) if start > at else -1
        boundary = END_OF_KEY.search(self._text, at if end < 0 else end + len(self._quote))
        if start > at and end < 0:
            return False
        if boundary is None:
            return False
        if boundary[0] != ":":
            return self._break()
        key = self._text[start : end if end >= 0 else boundary.start()]
        return self._begin_member(key if end >= 0 else key.strip(), boundary.end())

    def _begin_member(self, key: str, at: int) -> bool:
        inner = self._open[-1]
        if not key or key in inner.keys:
            return self._break()
        inner.keys.add(key)
        inner.member = inner.schema.member(key)
        self._separate()
        self._out.append(f"{to_json(key)}: ")
        return self._go(at, self._begin_value)

    def _begin_value(self) -> bool:
        at = self._skip_space()
        has_quote = self._has_quote(at)
        if at == len(self._text) or has_quote is None:
            return False
        if self._open[-1].closing == "]":
            self._separate()
        schema = self._member()
        if has_quote:
            types = schema.types
            self._typed = TypedText(STRING if "string" in types else types)
            return self._go(at + len(self._quote), self._read_string)
        if self._text[at] in "{[":
            return self._begin_inner(at, schema)
        return self._go(at, self._read_bare)

    def _begin_inner(self, at: int, schema: ValueSchema) -> bool:
        if len(self._open) == MAX_DEPTH:
            return self._break()
        opening = self._text[at]
        self._open.append(Open("}" if opening == "{" else "]", schema))
        self._out.append(opening)
        return self._go(at + 1, self._next_member)

    def _read_string(self) -> bool:
        split = self._splitter.feed(self._text[self._at :])
        self._out.append(self._typed.add(split.before))
        if split.behind is None:
            self._at = len(self._text)
            return False
        self._out.append(self._typed.finish())
        return self._go(len(self._text) - len(split.behind), self._behind_value)

    def _read_bare(self) -> bool:
        boundary = END_OF_BARE.search(self._text, self._at)
        if boundary is None:
            return False
        text = self._text[self._at : boundary.start()].strip()
        if not text or boundary[0] in "{[<":
            return self._break()
        self._out.append(json_of(text, self._member().types))
        return self._go(boundary.start(), self._behind_value)

    def _behind_value(self) -> bool:
        at = self._skip_space()
        if at == len(self._text):
            return False
        if self._text[at] == ",":
            return self._go(at + 1, self._next_member)
        return self._close(at) if self._text[at] == self._open[-1].closing else self._break()

    def _close(self, at: int) -> bool:
        self._out.append(self._open.pop().closing)
        self.is_complete = not self._open
        return self._go(at + 1, self._behind_value)

    def _member(self) -> ValueSchema:
        member = self._open[-1].member
        assert member is not None
        return member

    def _separate(self) -> None:
        if self._open[-1].num_members:
            self._out.append(", ")
        self._open[-1].num_members += 1

    def _has_quote(self, at: int) -> bool | None:
        """Whether a string begins there, None while that cannot be told."""
        begun = self._text[at : at + len(self._quote)]
        if begun == self._quote:
            return True
        return None if self._quote.startswith(begun) else False

    def _skip_space(self) -> int:
        return end_of_run(WHITE_SPACE, self._text, self._at)

    def _go(self, at: int, step: Callable[[], bool]) -> bool:
        self._at = at
        self._step = step
        return True

    def _break(self) -> bool:
        self.is_broken = True
        return False
