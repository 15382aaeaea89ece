"""A value of JSON as Python writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_server.parsers.tools.call import to_json


def literal(value: Any) -> str:
    """Strings stand in double quotes: what JSON escapes in them, Python reads the same."""
    if isinstance(value, str):
        return to_json(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{to_json(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(literal, value)) + "]"
    return repr(value)
