"""Turns the text of a value into JSON, by the types that its schema allows."""

from __future__ import annotations

import ast
import json
import re

from mlx_server.parsers.json_scanner import JsonScanner
from mlx_server.parsers.tools.call import to_json
from mlx_server.parsers.tools.python_strings import STRINGS, with_legal_escapes
from mlx_server.parsers.tools.value_schema import STRING, type_of

WHITE_SPACE = " \t\r\n"
LITERALS = {"t": ("true", "boolean"), "f": ("false", "boolean"), "n": ("null", "null")}
OPENINGS = {"{": "object", "[": "array", '"': "string"}
BEGUN_NUMBER = re.compile(r"-?[0-9.eE+-]*[ \t\r\n]*")
LINE_BREAK = "\n"


class TypedText:
    """The JSON of a value whose text is still growing.

    What can only be a string flows at once; all else waits for its end. A value that
    `has_own_line` stands between two line breaks, which are not part of it.
    """

    def __init__(self, types: frozenset[str], *, has_own_line: bool = False) -> None:
        self._types = types
        self._has_own_line = has_own_line
        self._is_string = types == STRING
        self._is_other = "string" not in types
        self._is_at_start = True
        self._has_quote = False
        self._held: list[str] = []

    @property
    def is_in_json_string(self) -> bool:
        """Whether the text is JSON that breaks off within a string."""
        if not self._is_other:
            return False
        scanner = JsonScanner()
        scanner.feed("".join(self._held))
        return scanner.is_in_string

    def add(self, text: str) -> str:
        text = self._without_first_break(text)
        if text:
            self._held.append(text)
        if not self._is_string and not self._is_other:
            self._decide()
        return self._flow() if self._is_string else ""

    def finish(self) -> str:
        text = "".join(self._held)
        if self._has_own_line:
            text = text.removesuffix(LINE_BREAK)
        if self._is_string:
            return self._quoted(text) + '"'
        return json_of(text, self._types)

    def _without_first_break(self, text: str) -> str:
        if not (self._has_own_line and self._is_at_start and text):
            return text
        self._is_at_start = False
        return text.removeprefix(LINE_BREAK)

    def _decide(self) -> None:
        text = "".join(self._held).lstrip(WHITE_SPACE)
        if not text:
            return
        self._is_other = OPENINGS.get(text[0]) in self._types
        self._is_string = not self._is_other and not may_be_scalar(text, self._types)

    def _flow(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        if self._has_own_line and text.endswith(LINE_BREAK):
            text = text[:-1]
            self._held.append(LINE_BREAK)
        return self._quoted(text) if text else ""

    def _quoted(self, text: str) -> str:
        quote = "" if self._has_quote else '"'
        self._has_quote = True
        return quote + to_json(text)[1:-1]


def may_be_scalar(text: str, types: frozenset[str]) -> bool:
    """Whether the text, which begins with no white space, may become JSON of one of the types."""
    if text[0] in LITERALS:
        literal, name = LITERALS[text[0]]
        return name in types and literal.startswith(text.rstrip(WHITE_SPACE))
    return not types.isdisjoint({"integer", "number"}) and bool(BEGUN_NUMBER.fullmatch(text))


def json_of(text: str, types: frozenset[str]) -> str:
    """JSON of what the text says: by its schema, else as JSON says it, else as a string."""
    if types == STRING:
        return to_json(text)
    found = json_text(text)
    fitting = found and fitted(found, types)
    if fitting:
        return fitting
    if "string" in types:
        return to_json(text)
    return python_literal(text, types) or found or to_json(text)


def json_text(text: str) -> str | None:
    """The text itself if it is JSON, with the strings in it repaired."""
    scanner = JsonScanner()
    scanned = scanner.feed(text.strip(WHITE_SPACE) + " ")
    is_all = scanner.is_complete and not text.strip(WHITE_SPACE)[scanned.end :]
    return scanned.text if is_all else None


def fitted(found: str, types: frozenset[str]) -> str | None:
    """The JSON if it is of one of the types; a whole number may be written with a fraction."""
    value = json.loads(found)
    kind = type_of(value)
    if kind in types:
        return found
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return str(int(value))
    return None


def python_literal(text: str, types: frozenset[str]) -> str | None:
    """JSON of a literal of Python, in which some templates show values to the model."""
    try:
        value = ast.literal_eval(STRINGS.sub(with_legal_escapes, text).strip())
        found = to_json(value)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    is_python = isinstance(value, bool | list | dict) or value is None
    return found if is_python and type_of(value) in types else None
