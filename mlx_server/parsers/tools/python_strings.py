"""Repairs the strings in Python that a model wrote."""

from __future__ import annotations

import re

STRINGS = re.compile(
    r"""(?P<string>
    \"{3} (?:\\.|[^\\])*? \"{3} | '{3} (?:\\.|[^\\])*? '{3}
    | \" (?:\\.|[^"\\\n])* \" | ' (?:\\.|[^'\\\n])* '
    ) | \#[^\n]*""",
    re.VERBOSE | re.DOTALL,
)
# with line breaks in any, which have only one reading where nothing else is a text
STRINGS_OF_LINES = re.compile(
    r"""(?P<string>
    \"{3} (?:\\.|[^\\])*? \"{3} | '{3} (?:\\.|[^\\])*? '{3}
    | \" (?:\\.|[^"\\])* \" | ' (?:\\.|[^'\\])* '
    )""",
    re.VERBOSE | re.DOTALL,
)
BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
LINE_BREAK = re.compile(r"(\\.)|\n|\r", re.DOTALL)
LEGAL_ESCAPES = frozenset("\n\\'\"abfnrtv01234567xNuU")


def with_legal_escapes(match: re.Match[str]) -> str:
    r"""`"\d"` means a backslash and a letter; Python only warns of it today."""
    has_prefix = match.string[match.start() - 1 : match.start()].isalpha()
    if match["string"] is None or has_prefix:
        return match[0]
    return BACKSLASH.sub(lambda m: m[0] if m[1] in LEGAL_ESCAPES else "\\" + m[0], match[0])


def on_one_line(match: re.Match[str]) -> str:
    text = with_legal_escapes(match)
    if text.startswith(('"""', "'''")):
        return text
    return LINE_BREAK.sub(lambda m: m[1] or repr(m[0])[1:-1], text)
