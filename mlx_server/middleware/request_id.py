"""Names every request and writes its one line into the access log."""

from __future__ import annotations

import logging
import re
import secrets
import time
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlx_server.messages_wire import is_messages_path

logger = logging.getLogger(__name__)

HEADER = b"x-request-id"
# what Anthropic's clients read it from
MESSAGES_HEADER = b"request-id"
ACCEPTABLE = re.compile(rb"[!-~]{1,128}")
MAX_PATH_CHARS = 200


class RequestId:
    """Put the request's id into `scope["state"]["request_id"]` and the response's headers.

    The log line comes when the answer has ended, a stream's as well. It holds no query and no
    text; a request that ended without an answer has `-` for its status.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request_id = sent_id(scope) or f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.perf_counter()
        status: int | str = "-"

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = (HEADER, MESSAGES_HEADER) if is_messages_path(scope["path"]) else (HEADER,)
                ids = ((name, request_id.encode()) for name in names)
                headers = [*message.get("headers", ()), *ids]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            duration_ms = (time.perf_counter() - began) * 1000
            logger.info(
                "%s %s %s %.0f ms %s",
                scope["method"],
                printable_path(scope),
                status,
                duration_ms,
                request_id,
            )


def sent_id(scope: Scope) -> str | None:
    """The id the client gave, if it can stand in a header and in a log line."""
    value = next((value for name, value in scope["headers"] if name == HEADER), b"")
    return value.decode("ascii") if ACCEPTABLE.fullmatch(value) else None


def printable_path(scope: Scope) -> str:
    """The path in its percent-encoded form, since the decoded one may break the log's lines."""
    return quote(scope["path"])[:MAX_PATH_CHARS]
