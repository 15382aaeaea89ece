"""The guard alone, message by message; what the parser does before it is in test_http_framing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from starlette.types import Message

from mlx_server.middleware.body_guard import BodyGuard
from tests.asgi_client import Answer, run
from tests.toy_app import echo_app

LIMIT = 100
CHUNKED = {"transfer-encoding": "chunked"}


async def immediately(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def dripping(interval_s: float) -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(interval_s)
        yield b"x"


async def then_silent(first: bytes) -> AsyncIterator[bytes]:
    yield first
    await asyncio.Event().wait()


async def send_through(
    guard: BodyGuard, pieces: AsyncIterator[bytes], headers: dict[str, str], path: str
) -> Answer:
    async def receive() -> Message:
        async for piece in pieces:
            return {"type": "http.request", "body": piece, "more_body": True}
        return {"type": "http.request", "body": b"", "more_body": False}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    await guard(scope, receive, send)
    start, *bodies = sent
    received = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], received, b"".join(body["body"] for body in bodies))


def ask(
    pieces: AsyncIterator[bytes] | Iterable[bytes] = (),
    headers: dict[str, str] | None = None,
    *,
    path: str = "/echo",
    **limits: Any,
) -> Answer:
    settings = {"max_bytes": LIMIT, "idle_timeout_s": 60.0, "total_timeout_s": 60.0, **limits}
    guard = BodyGuard(echo_app(), **settings)
    if not isinstance(pieces, AsyncIterator):
        pieces = immediately(pieces)
    return run(send_through(guard, pieces, CHUNKED if headers is None else headers, path))


def assert_is_refusal(answer: Answer, status: int) -> None:
    assert answer.status == status
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] is None


def test_a_body_of_just_the_limit_passes_whole() -> None:
    answer = ask([b"x" * 60, b"y" * 40])
    assert answer.status == 200
    assert answer.json["text"] == "x" * 60 + "y" * 40


def test_a_chunked_body_is_refused_at_the_byte_over_the_limit() -> None:
    answer = ask([b"x" * 60, b"y" * 41])
    assert_is_refusal(answer, 413)
    assert "100 bytes" in answer.error["message"]


def test_a_body_counted_too_large_leaves_the_connection_open() -> None:
    # a client reads the answer only after its last byte
    assert "connection" not in ask([b"x" * 101]).headers


def test_an_endless_body_is_not_read_beyond_the_limit() -> None:
    num_read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal num_read
        while True:
            num_read += 10
            yield b"x" * 10

    assert_is_refusal(ask(endless()), 413)
    assert num_read == 110


def test_a_declared_length_over_the_limit_is_refused_before_the_body_is_read() -> None:
    was_read = False

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal was_read
        was_read = True
        yield b"x"

    answer = ask(pieces(), {"content-length": "101"})
    assert_is_refusal(answer, 413)
    assert not was_read
    assert "connection" not in answer.headers


def test_a_client_that_waits_to_send_too_large_a_body_gets_the_connection_closed() -> None:
    answer = ask((), {"content-length": "101", "expect": "100-continue"})
    assert_is_refusal(answer, 413)
    assert answer.headers["connection"] == "close"


def test_a_declared_length_within_the_limit_passes() -> None:
    assert ask([b"x" * 100], {"content-length": "100"}).json["num_bytes"] == 100


def test_a_body_that_stops_arriving_is_refused_and_the_connection_closed() -> None:
    answer = ask(then_silent(b"x"), idle_timeout_s=0.02)
    assert_is_refusal(answer, 408)
    assert answer.headers["connection"] == "close"


def test_a_body_that_drips_for_too_long_is_refused() -> None:
    answer = ask(dripping(0.005), total_timeout_s=0.05)
    assert_is_refusal(answer, 408)


def test_a_steady_body_is_not_idle() -> None:
    answer = ask(dripping(0.005), idle_timeout_s=1.0, max_bytes=10)
    assert_is_refusal(answer, 413)


def test_waiting_for_the_disconnect_after_the_body_has_no_limit() -> None:
    gone = asyncio.Event()

    async def answer_when_gone(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        gone.set()

    async def work() -> None:
        messages = iter([{"type": "http.request", "body": b"x"}])

        async def receive() -> Message:
            for message in messages:
                return message
            await asyncio.sleep(0.05)
            return {"type": "http.disconnect"}

        guard = BodyGuard(
            answer_when_gone, max_bytes=LIMIT, idle_timeout_s=0.01, total_timeout_s=0.01
        )
        await guard({"type": "http", "path": "/", "headers": []}, receive, receive)  # type: ignore[arg-type]

    run(work())
    assert gone.is_set()


def test_both_framings_at_once_are_refused_and_the_connection_closed() -> None:
    answer = ask([b"x"], {**CHUNKED, "content-length": "1"})
    assert_is_refusal(answer, 400)
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "GZIP"])
def test_a_compressed_body_is_refused(coding: str) -> None:
    answer = ask([b"x"], {**CHUNKED, "content-encoding": coding})
    assert_is_refusal(answer, 415)
    assert "Content-Encoding" in answer.error["message"]


@pytest.mark.parametrize("coding", ["", "identity", "Identity"])
def test_a_body_that_says_it_is_not_compressed_passes(coding: str) -> None:
    assert ask([b"x"], {**CHUNKED, "content-encoding": coding}).status == 200


def test_a_refusal_has_its_true_length() -> None:
    answer = ask((), {"content-length": "101"})
    assert int(answer.headers["content-length"]) == len(answer.body)
    json.loads(answer.body)


def test_other_scopes_pass_untouched() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    guard = BodyGuard(app, max_bytes=1, idle_timeout_s=1, total_timeout_s=1)
    run(guard({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]
