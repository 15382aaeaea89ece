"""The assembled app, called in-process; the process around it is in test_launch."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from fastapi import FastAPI

from mlx_server.config import ServerConfig
from mlx_server.engine.status import EngineStatus
from mlx_server.greeting import greeting
from mlx_server.main import Server, announce, bind, create_app, uvicorn_config
from mlx_server.middleware.connection import Connection
from tests.asgi_client import Answer, Call, call, run
from tests.fake_engine import answering
from tests.live_server import LiveEngine
from tests.toy_app import hello_app

KEY = "sk-right"
PAGE = "http://localhost:3000"
CHAT = "/v1/chat/completions"
QUESTION = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def make_app(**config: Any) -> FastAPI:
    engine = LiveEngine(answering("hello").script)
    return create_app(ServerConfig(api_key=KEY, **config), engine)  # type: ignore[arg-type]


def ask(app: FastAPI, path: str = CHAT, body: Any = None, **headers: str) -> Answer:
    sent = {"origin": PAGE, "content-type": "application/json", "x-api-key": KEY}
    return call(app, path, body, headers={**sent, **headers})


def test_the_engine_lives_as_long_as_the_app() -> None:
    engine = LiveEngine()
    app = create_app(ServerConfig(models=("a", "b")), engine)  # type: ignore[arg-type]

    async def work() -> None:
        async with app.router.lifespan_context(app):
            assert engine.preloaded == ["a"]
            assert not engine.is_closed

    run(work())
    assert engine.is_closed


def test_b006_a_preflight_request_needs_no_key_and_allows_what_was_asked() -> None:
    headers = {
        "origin": PAGE,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    answer = call(make_app(), CHAT, method="OPTIONS", headers=headers)
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization,content-type"


def failing_app() -> FastAPI:
    app = make_app()

    @app.get("/fails")
    async def fails() -> None:
        raise ZeroDivisionError

    return app


@pytest.mark.parametrize(
    ("status", "path", "body", "headers"),
    [
        (200, CHAT, QUESTION, {}),
        (200, CHAT, {**QUESTION, "stream": True}, {}),
        (400, CHAT, {}, {}),
        (401, CHAT, QUESTION, {"x-api-key": "wrong"}),
        (401, "/v1/models", None, {"x-api-key": ""}),
        (404, "/v1/nonsense", None, {}),
        (404, CHAT, {**QUESTION, "model": "no/such"}, {}),
        (405, "/health", {}, {}),
        (413, CHAT, QUESTION, {"content-length": "99999999999"}),
        (415, CHAT, QUESTION, {"content-encoding": "gzip"}),
    ],
    ids=lambda value: str(value) if isinstance(value, int | str) else "",
)
def test_b007_every_answer_can_be_read_by_a_page_and_has_its_id(
    status: int, path: str, body: Any, headers: dict[str, str]
) -> None:
    answer = ask(make_app(), path, body, **headers)
    assert answer.status == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-expose-headers"] == "x-request-id"
    assert answer.headers["x-request-id"]
    if status >= 400:
        assert answer.error


def test_b007_an_unforeseen_exception_is_answered_like_every_error() -> None:
    async def work() -> Answer:
        request = Call(failing_app(), "/fails", headers={"origin": PAGE, "x-api-key": KEY})
        status, headers = await request.head()
        return Answer(status, headers, await request.piece())

    answer = run(work())
    assert answer.status == 500
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["x-request-id"]
    assert "ZeroDivisionError" not in answer.error["message"]


def test_only_listed_origins_are_allowed() -> None:
    app = make_app(cors_origins=(PAGE,))
    assert ask(app, CHAT, QUESTION).headers["access-control-allow-origin"] == PAGE
    foreign = ask(app, CHAT, QUESTION, origin="http://elsewhere")
    assert "access-control-allow-origin" not in foreign.headers


def test_no_origin_is_allowed_when_none_is_listed() -> None:
    assert "access-control-allow-origin" not in ask(make_app(cors_origins=()), CHAT).headers


def test_without_a_key_of_its_own_the_server_asks_for_none() -> None:
    app = create_app(ServerConfig(), LiveEngine())  # type: ignore[arg-type]
    assert call(app, "/v1/models", headers={}).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_needs_no_key(path: str) -> None:
    assert call(make_app(), path, headers={}).status == 200


def test_the_limit_of_the_configuration_reaches_the_guard() -> None:
    app = make_app(max_body_bytes=1000)
    assert ask(app, CHAT, {**QUESTION, "user": "x" * 1000}).status == 413


@pytest.mark.parametrize("path", ["/v1//models", "/v1/models/"])
def test_b008_a_slash_too_many_is_served_or_404(path: str) -> None:
    assert ask(make_app(), path).status in (200, 404)


def test_b008_a_post_with_a_slash_too_many_is_not_sent_elsewhere_without_its_body() -> None:
    assert ask(make_app(), f"{CHAT}/", QUESTION).status == 404


def test_b008_paths_without_v1_are_served() -> None:
    assert ask(make_app(), "/chat/completions", QUESTION).status == 200


def test_the_documentation_is_served() -> None:
    assert ask(make_app(), "/docs").status == 200
    paths = ask(make_app(), "/openapi.json").json["paths"]
    assert CHAT in paths
    assert "/v1/models" in paths


def test_the_server_settings_suit_a_router_in_front() -> None:
    settings = uvicorn_config(hello_app, ServerConfig(drain_s=3.0))
    assert settings.http is Connection
    assert settings.timeout_keep_alive > 90
    assert settings.limit_concurrency is None
    assert settings.h11_max_incomplete_event_size is None
    assert settings.server_header is False
    assert settings.access_log is False
    assert settings.timeout_graceful_shutdown == 3.0


def test_the_command_that_the_greeting_shows_is_answered() -> None:
    text = greeting("http://127.0.0.1:1234", "org/fake", needs_key=False)
    command = next(line for line in text.splitlines() if line.strip().startswith("curl "))
    _, url, _, content_type, _, body = shlex.split(command)
    assert url == "http://127.0.0.1:1234/v1/chat/completions"
    name, _, value = content_type.partition(": ")
    answer = ask(make_app(), CHAT, json.loads(body), **{name: value})
    assert answer.json["choices"][0]["message"]["content"] == "hello"


def test_the_failure_of_another_model_does_not_count_for_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = ServerConfig(models=("fake", "b"))
    engine = LiveEngine(status_now=EngineStatus(load_error="broken", preloaded="org/fake"))
    server = Server(hello_app, config, engine)  # type: ignore[arg-type]
    server.started = True

    with bind("127.0.0.1", 0) as listening:
        run(announce(server, config, listening))

    assert not server.should_exit
    assert "org/fake" in capsys.readouterr().out
