"""Lets requests through that carry the server's API key."""

from __future__ import annotations

import hmac
from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from mlx_server.middleware.refusal import refuse

OPEN_PATHS = frozenset({"/health", "/v1/health"})
CHALLENGE = (b"www-authenticate", b"Bearer")


class ApiKeyAuth:
    """Answer 401 to a request without the key in `Authorization: Bearer` or `x-api-key`.

    Monitors ask /health and browsers send OPTIONS without a key, and so may everybody.
    """

    def __init__(self, app: ASGIApp, *, api_key: str) -> None:
        self.app = app
        self.api_key = api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or is_open(scope) or self.has_key(scope):
            return await self.app(scope, receive, send)
        message = (
            "Send the server's API key in the header `Authorization: Bearer KEY` or `x-api-key`."
        )
        await refuse(scope, send, 401, message, code="invalid_api_key", headers=[CHALLENGE])

    def has_key(self, scope: Scope) -> bool:
        # A comparison that stops at the first wrong byte would tell by its time how much was right.
        return any(hmac.compare_digest(key, self.api_key) for key in keys_of(scope))


def is_open(scope: Scope) -> bool:
    return scope["method"] == "OPTIONS" or scope["path"] in OPEN_PATHS


def keys_of(scope: Scope) -> Iterator[bytes]:
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            yield value
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()
