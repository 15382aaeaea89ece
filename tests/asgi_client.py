"""Calls an ASGI app in-process, whole or piece by piece, with a client that can hang up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import FastAPI

from mlx_server.api import api_router
from mlx_server.api.error_handlers import install_error_handlers
from mlx_server.config import ServerConfig
from tests.fake_engine import FakeEngine
from tests.patience import HANG_S

T = TypeVar("T")


def make_app(engine: FakeEngine, **config: Any) -> FastAPI:
    app = FastAPI()
    app.include_router(api_router(ServerConfig(**config), engine))  # type: ignore[arg-type]
    install_error_handlers(app)
    return app


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, HANG_S))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        assert set(self.json) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return chunks(self.body)


def chunks(body: bytes) -> list[dict[str, Any]]:
    """The data frames of a stream, which must be framed as routers need it and end with [DONE]."""
    frames = body.decode().split("\n\n")
    assert frames.pop() == ""
    data = [frame for frame in frames if not frame.startswith(": ")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in data)
    assert data.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in data]


class Call:
    """One request that is under way: read its answer as it comes, or hang up."""

    def __init__(
        self,
        app: Any,
        path: str,
        body: bytes | Mapping[str, Any] | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        path, _, query = path.partition("?")
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self._hung_up = asyncio.Event()
        self._sent = asyncio.Queue[dict[str, Any]]()
        self._to_read = [{"type": "http.request", "body": content or b"", "more_body": False}]
        if headers is None:
            headers = {"content-type": "application/json"}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method or ("GET" if body is None else "POST"),
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 1234),
            "state": {},
        }
        self._task = asyncio.create_task(app(scope, self._receive, self._sent.put))

    async def _receive(self) -> dict[str, Any]:
        if self._to_read:
            return self._to_read.pop(0)
        await self._hung_up.wait()
        return {"type": "http.disconnect"}

    @property
    def is_silent(self) -> bool:
        """Nothing has been sent that was not read yet."""
        return self._sent.empty()

    async def head(self) -> tuple[int, dict[str, str]]:
        message = await self._next()
        assert message["type"] == "http.response.start"
        return message["status"], {k.decode(): v.decode() for k, v in message["headers"]}

    async def piece(self) -> bytes:
        message = await self._next()
        assert message["type"] == "http.response.body"
        body: bytes = message.get("body", b"")
        return body

    async def _next(self) -> dict[str, Any]:
        waiting = asyncio.create_task(self._sent.get())
        await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            self._task.result()
            raise AssertionError("the app ended without an answer")
        return waiting.result()

    async def hang_up(self) -> None:
        """Close the client's side and wait until the app has noticed."""
        self._hung_up.set()
        await self._task

    async def answer(self) -> Answer:
        status, headers = await self.head()
        body = b""
        while True:
            message = await self._next()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        await self._task
        return Answer(status, headers, body)


def call(app: Any, path: str, body: bytes | Mapping[str, Any] | None = None, **kw: Any) -> Answer:
    """One request and its whole answer."""

    async def work() -> Answer:
        return await Call(app, path, body, **kw).answer()

    return run(work())
