"""The answer of a middleware that does not let a request through, shaped as its path has errors."""

from __future__ import annotations

import json
from collections.abc import Iterable

from starlette.types import Scope, Send

from mlx_server.messages_wire import MessagesErrorBody, is_messages_path, messages_error
from mlx_server.models import ErrorBody

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
    body = json.dumps(error_body(scope, status, message, code)).encode()
    framing = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if any(name == b"expect" for name, _ in scope["headers"]):
        # A client that waits for "100 Continue" need not send its body now; on a connection that
        # stays open the parser would then take its next request for that body.
        framing.append(CLOSE)
    await send(
        {"type": "http.response.start", "status": status, "headers": [*framing, *headers]},
    )
    await send({"type": "http.response.body", "body": body})


def error_body(
    scope: Scope, status: int, message: str, code: str | None
) -> ErrorBody | MessagesErrorBody:
    if is_messages_path(scope["path"]):
        return messages_error(status, message, scope.get("state", {}).get("request_id"))
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    }
