"""The answer of a middleware that does not let a request through, in the shape of every error."""

from __future__ import annotations

import json
from collections.abc import Iterable

from starlette.types import Scope, Send

Header = tuple[bytes, bytes]
CLOSE: Header = (b"connection", b"close")


async def refuse(
    scope: Scope,
    send: Send,
    status: int,
    message: str,
    *,
    code: str | None = None,
    headers: Iterable[Header] = (),
) -> None:
    """Answer instead of the app, which has not read anything of the body."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    framing = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if any(name == b"expect" for name, _ in scope["headers"]):
        # A client that waits for "100 Continue" need not send its body now; on a connection that
        # stays open the parser would then take its next request for that body.
        framing.append(CLOSE)
    await send(
        {"type": "http.response.start", "status": status, "headers": [*framing, *headers]},
    )
    await send({"type": "http.response.body", "body": body})
