"""Limits on request bodies: their size, framing and encoding, and the time a client may take.

Knows nothing of what a body means.
"""

from __future__ import annotations

import asyncio

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mlx_server.middleware.refusal import CLOSE, refuse


class BodyGuard:
    """Answer 400, 408, 413 or 415 before a body fills the memory or holds a connection for ever.

    What the head gives away is refused here. The rest is counted while the app reads, which needs
    no Content-Length.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_bytes: int,
        idle_timeout_s: float,
        total_timeout_s: float,
    ) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.idle_timeout_s = idle_timeout_s
        self.total_timeout_s = total_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # The parser believes Transfer-Encoding and keeps the connection, so that what another
            # reader takes for the rest of this body would be served as the next request.
            message = "Send Content-Length or Transfer-Encoding, not both."
            return await refuse(scope, send, 400, message, headers=[CLOSE])
        codings = [value for name, value in scope["headers"] if name == b"content-encoding"]
        if any(coding.strip().lower() not in (b"", b"identity") for coding in codings):
            message = "Compressed request bodies are not supported; leave Content-Encoding out."
            return await refuse(scope, send, 415, message)
        if int(headers.get(b"content-length", b"0")) > self.max_bytes:
            return await refuse(scope, send, 413, too_large(self.max_bytes))
        await self.app(scope, self.bounded(receive), send)

    def bounded(self, receive: Receive) -> Receive:
        return BoundedReceive(
            receive,
            max_bytes=self.max_bytes,
            idle_timeout_s=self.idle_timeout_s,
            deadline=asyncio.get_running_loop().time() + self.total_timeout_s,
        )


class BoundedReceive:
    """`receive` within limits until the body is complete; after that it waits for the disconnect
    as long as that takes.

    Raises HTTPException, which FastAPI hands on to the app's error handlers; it would turn any
    other type into a 400.
    """

    def __init__(
        self, receive: Receive, *, max_bytes: int, idle_timeout_s: float, deadline: float
    ) -> None:
        self.receive = receive
        self.max_bytes = max_bytes
        self.idle_timeout_s = idle_timeout_s
        self.deadline = deadline
        self.num_bytes = 0
        self.is_complete = False

    async def __call__(self) -> Message:
        if self.is_complete:
            return await self.receive()
        message = await self.next_message()
        if message["type"] == "http.request":
            self.num_bytes += len(message.get("body", b""))
            self.is_complete = not message.get("more_body", False)
            if self.num_bytes > self.max_bytes:
                # Without "Connection: close" the server reads the rest and throws it away, so that
                # a client that looks for the answer only after its last byte lives to see it.
                raise HTTPException(413, too_large(self.max_bytes))
        return message

    async def next_message(self) -> Message:
        idle_deadline = asyncio.get_running_loop().time() + self.idle_timeout_s
        try:
            async with asyncio.timeout_at(min(self.deadline, idle_deadline)):
                return await self.receive()
        except TimeoutError:
            message = "The request body did not arrive in time."
            raise HTTPException(408, message, {"Connection": "close"}) from None


def too_large(max_bytes: int) -> str:
    return f"The request body may have at most {max_bytes} bytes."
