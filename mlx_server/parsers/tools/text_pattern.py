"""The bounds that a JSON schema puts on a string, as a regular expression of llguidance's Lark."""

from __future__ import annotations

import re

from mlx_server.parsers.lark import ANY_TEXT
from mlx_server.parsers.tools.value_schema import ValueSchema

UNESCAPED_SLASH = re.compile(r"(?<!\\)((?:\\\\)*)/")
ENDS_ANCHORED = re.compile(r"(?<!\\)(?:\\\\)*\$$")
ANY = "(?s:.*)"


def text_pattern(schema: ValueSchema) -> str:
    """What a text that the schema allows looks like; of `format` it knows nothing."""
    keywords = schema.plain
    bounds = [*lengths(keywords.get("minLength"), keywords.get("maxLength"))]
    pattern = keywords.get("pattern")
    if isinstance(pattern, str):
        bounds.append(f"/{unanchored(pattern)}/")
    return " & ".join(bounds) or ANY_TEXT


def lengths(least: object, most: object) -> list[str]:
    low = least if isinstance(least, int) and least > 0 else 0
    high = most if isinstance(most, int) else ""
    return [f"/(?s:.{{{low},{high}}})/"] if low or high != "" else []


def unanchored(pattern: str) -> str:
    """A pattern of a JSON schema, which may match anywhere, as one that matches the whole text."""
    pattern = UNESCAPED_SLASH.sub(r"\1\\/", pattern)
    begins = pattern.startswith("^")
    ends = bool(ENDS_ANCHORED.search(pattern))
    inside = pattern[begins : len(pattern) - ends]
    return f"{'' if begins else ANY}(?:{inside}){'' if ends else ANY}"
