"""Who stops reading is let go, who reads slowly is not."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from mlx_server.middleware import connection as connection_module
from mlx_server.middleware.connection import Connection
from tests.live_server import live_server
from tests.patience import HANG_S
from tests.toy_app import hello_app


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.num_unread = 0
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.num_unread

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        self.is_aborted = True


class FakeTimer:
    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeLoop:
    """Its time passes when the test says so."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def call_later(self, delay_s: float, call: Callable[[], object]) -> FakeTimer:
        self.timers.append(FakeTimer(call))
        return self.timers[-1]

    def pass_time(self) -> None:
        due, self.timers = self.timers, []
        for timer in due:
            if not timer.is_cancelled:
                timer.call()


def connect() -> tuple[Connection, FakeTransport, FakeLoop]:
    loop, transport = FakeLoop(), FakeTransport()
    config = uvicorn.Config(hello_app, log_config=None)
    connection = Connection(config, ServerState(), {}, _loop=loop)  # type: ignore[arg-type]
    connection.connection_made(transport)
    return connection, transport, loop


def test_a_client_that_reads_nothing_is_let_go() -> None:
    connection, transport, loop = connect()
    transport.num_unread = 100_000
    connection.pause_writing()
    loop.pass_time()
    assert transport.is_aborted


def test_a_client_that_reads_slowly_keeps_its_connection() -> None:
    connection, transport, loop = connect()
    transport.num_unread = 100_000
    connection.pause_writing()
    for _ in range(1000):
        transport.num_unread -= 1
        loop.pass_time()
    assert not transport.is_aborted
    connection.resume_writing()
    loop.pass_time()
    assert not transport.is_aborted


def test_an_answer_that_is_never_read_does_not_keep_an_idle_connection() -> None:
    connection, transport, loop = connect()
    transport.num_unread = 100
    connection.timeout_keep_alive_handler()
    loop.pass_time()
    assert transport.is_aborted


def test_nothing_is_watched_once_all_is_read_or_the_connection_is_gone() -> None:
    connection, transport, loop = connect()
    connection.timeout_keep_alive_handler()
    assert loop.timers == []
    transport.num_unread = 100
    connection.pause_writing()
    connection.connection_lost(OSError())
    loop.pass_time()
    assert not transport.is_aborted


def test_an_app_that_writes_to_a_client_that_does_not_read_hears_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "STALL_S", 0.05)
    has_ended = threading.Event()

    async def endless_app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        ending = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not ending.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        assert (await ending)["type"] == "http.disconnect"
        has_ended.set()

    app = FastAPI()
    app.mount("/", endless_app)
    with live_server(app) as address, socket.create_connection(address) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert has_ended.wait(HANG_S)
