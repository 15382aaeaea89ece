from __future__ import annotations

import logging
from typing import Any

import pytest

from mlx_server.middleware.request_id import RequestId
from tests.asgi_client import Answer, Call, call, run
from tests.toy_app import echo_app, hello_app

LOGGER = "mlx_server.middleware.request_id"


def ask(sent_id: str | None = None) -> Answer:
    headers = {} if sent_id is None else {"x-request-id": sent_id}
    return call(RequestId(echo_app()), "/echo", b"", method="POST", headers=headers)


def test_every_request_gets_an_id_of_its_own() -> None:
    ids = {ask().headers["x-request-id"] for _ in range(100)}
    assert len(ids) == 100


def test_the_app_sees_the_id_that_the_client_gets() -> None:
    answer = ask()
    assert answer.json["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("sent_id", ["a", "7f1c/req:1", "x" * 128])
def test_the_client_may_choose_the_id(sent_id: str) -> None:
    answer = ask(sent_id)
    assert answer.headers["x-request-id"] == sent_id
    assert answer.json["request_id"] == sent_id


@pytest.mark.parametrize("sent_id", ["", "x" * 129, "two words", "schlüssel", "a\tb", "a\nb"])
def test_an_id_that_would_spoil_a_log_line_is_replaced(sent_id: str) -> None:
    assert ask(sent_id).headers["x-request-id"].startswith("req_")


def test_a_request_leaves_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    call(RequestId(echo_app()), "/echo", b"secret", headers={"x-request-id": "the-id"})
    (line,) = caplog.messages
    method, path, status, duration_ms, unit, request_id = line.split(" ")
    assert (method, path, status, unit, request_id) == ("POST", "/echo", "200", "ms", "the-id")
    assert 0 <= int(duration_ms) < 10_000


def test_a_path_cannot_forge_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    call(RequestId(hello_app), "/a\nGET /b 200\x1b[2J" + "x" * 1000)
    (line,) = caplog.messages
    assert line.isprintable()
    assert len(line) < 300
    assert line.startswith("GET /a%0AGET%20/b%20200%1B")


def test_the_status_of_an_error_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    call(RequestId(echo_app()), "/nowhere")
    assert caplog.messages[0].startswith("GET /nowhere 404 ")


def test_a_stream_is_logged_when_it_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    async def streaming_app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        assert (await receive())["type"] == "http.request"
        await receive()

    async def work() -> None:
        request = Call(RequestId(streaming_app), "/stream")
        await request.head()
        assert await request.piece() == b"first"
        assert caplog.messages == []
        await request.hang_up()

    run(work())
    assert caplog.messages[0].startswith("GET /stream 200 ")


def test_a_request_without_an_answer_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)

    async def failing_app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer"):
        call(RequestId(failing_app), "/fails")
    assert caplog.messages[0].startswith("GET /fails - ")
