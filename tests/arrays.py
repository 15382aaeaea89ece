"""Small arrays as plain Python."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


def token_ids(tokens: mx.array) -> list[int]:
    listed: Any = tokens.tolist()
    return [int(token) for token in listed]


def token_id(token: mx.array) -> int:
    """The one token there is."""
    return token_ids(token.reshape(-1))[0]
