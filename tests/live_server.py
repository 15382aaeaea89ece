"""Runs an ASGI app behind real sockets, with the settings the server itself runs with."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.types import ASGIApp

from mlx_server.config import ServerConfig
from mlx_server.main import bind, uvicorn_config
from tests.fake_engine import FakeEngine

Address = tuple[str, int]


@dataclass
class LiveEngine(FakeEngine):
    """A FakeEngine with the life of a real one: started, then closed."""

    preloaded: list[str | None] = field(default_factory=list)
    is_closed: bool = False

    async def start(self, preload: str | None = None) -> None:
        self.preloaded.append(preload)

    async def close(self, drain_s: float = 0.0) -> None:
        self.is_closed = True


@contextmanager
def live_server(
    app: ASGIApp, config: ServerConfig | None = None, *, http: str | None = None
) -> Iterator[Address]:
    """Serve `app` from a thread on a free port, for as long as the context lasts."""
    settings = uvicorn_config(app, config or ServerConfig(drain_s=0.0))
    settings.http = http or settings.http
    server = uvicorn.Server(settings)
    with bind("127.0.0.1", 0) as listening:
        # From here on connections are taken in, so that nobody need wait for the thread.
        listening.listen()
        address = listening.getsockname()
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listening])), name="live server"
        )
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()
