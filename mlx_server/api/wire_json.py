"""How this server writes JSON."""

from __future__ import annotations

import json

from fastapi import Response

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def to_json(value: object) -> str:
    """Compact JSON without the three characters at which some line readers break it, legal as they
    are.
    """
    text = _encode(value)
    if text.isascii():
        return text
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def json_response(body: object) -> Response:
    return Response(to_json(body).encode(errors="replace"), media_type="application/json")
