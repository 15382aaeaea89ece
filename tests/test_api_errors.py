from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.exceptions import HTTPException

from mlx_server.api.error_handlers import install_error_handlers
from mlx_server.errors import (
    ContextLengthExceeded,
    EngineOverloaded,
    EngineStopped,
    GenerationFailed,
    InsufficientMemory,
    InvalidRequest,
    ModelLoadFailed,
    ModelNotFound,
    ModelTooLarge,
    ModelUnavailable,
    ServerError,
    UnsupportedParameter,
)
from tests.asgi_client import Answer, Call, call, make_app, run
from tests.fake_engine import FakeEngine, answering, started

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = ["/v1/chat/completions", "/v1/completions"]
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": {"prompt": "hi"}}
SECRET = "my credit card"


def post(body: Any, path: str = "/v1/chat/completions", **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    app = make_app(answering("ok"))
    return call(app, path, content, headers=headers or {"content-type": "application/json"})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("Say it otherwise.", param="messages"), 400, None),
        (ContextLengthExceeded(100, 64), 400, "context_length_exceeded"),
        (InsufficientMemory(9, 5, 10, param="messages"), 400, "insufficient_memory"),
        (UnsupportedParameter("No.", param="x"), 400, "unsupported_parameter"),
        (ModelNotFound(), 404, "model_not_found"),
        (EngineOverloaded("Full."), 429, "engine_overloaded"),
        (ModelUnavailable("Gone."), 503, "model_unavailable"),
        (ModelLoadFailed("Broken."), 503, "model_load_failed"),
        (ModelTooLarge(20 << 30, 10 << 30), 503, "insufficient_memory"),
        (EngineStopped("Bye."), 503, "engine_stopped"),
        (GenerationFailed("Oh."), 500, "generation_failed"),
        (ServerError("Oh."), 500, None),
    ],
)
def test_errors_have_their_status_and_one_shape(
    path: str, stream: bool, error: ServerError, status: int, code: str | None
) -> None:
    app = make_app(FakeEngine([error]))

    answer = call(app, path, {**BODIES[path], "stream": stream})

    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.error == {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": code,
    }
    assert answer.headers.get("retry-after") == ("1" if status == 429 else None)


@pytest.mark.parametrize("stream", [False, True])
def test_b014_unknown_model_is_404_and_the_next_request_is_served(stream: bool) -> None:
    app = make_app(answering("ok"))

    answer = call(app, PATHS[0], {**CHAT, "model": "no/such-model", "stream": stream})

    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert answer.error["param"] == "model"
    assert call(app, PATHS[0], CHAT).status == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [b"", b"  \n", b"[1]", b'"text"', b"{", b'{"a":1}}', b"\xff\xfe{}", b"null", b'{"a":NaN}']
    + [b"[" * 100_000, b'{"a":' * 50_000, b'{"n":' + b"1" * 5000 + b"}"],
)
def test_b013_what_is_no_json_object_is_a_400(path: str, body: bytes) -> None:
    answer = post(body, path)

    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


def test_message_for_messages_is_explained() -> None:
    answer = post({"model": "m", "message": [{"role": "user", "content": "hi"}]})

    assert answer.status == 400
    assert answer.error["param"] == "messages"
    assert "`message`" in answer.error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_what_is_missing_is_named(path: str) -> None:
    param = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}[path]

    answer = post({}, path)

    assert answer.status == 400
    assert answer.error["param"] == param
    assert "is required" in answer.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": SECRET, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": SECRET}]}]},
        {"messages": SECRET},
        {"messages": [SECRET]},
        {"temperature": SECRET},
        {"n": SECRET},
        {"logit_bias": {SECRET: 1}},
        {"logit_bias": {"1": SECRET}},
        {"stop": [SECRET, 1]},
        {"response_format": {"type": SECRET}},
        {"tool_choice": SECRET},
        {"reasoning_effort": SECRET},
        {"model": SECRET},
        {"tools": [{"type": SECRET}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": SECRET}}]},
        {"chat_template_kwargs": SECRET},
        {SECRET: 1, "n": 0},
    ],
)
def test_errors_never_quote_the_client(fields: dict[str, Any]) -> None:
    answer = post({**CHAT, **fields})

    assert answer.status in (400, 404)
    assert SECRET not in answer.body.decode()


def test_b004_half_a_character_in_a_refused_field_is_a_400() -> None:
    answer = post(rb'{"messages":[{"role":"x\ud800","content":"a"}]}')

    assert answer.status == 400
    assert answer.error["param"] == "messages.0.role"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json; charset=utf-8"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"accept": "*/*"},
        {"content-type": "application/json", "origin": "http://localhost:3000"},
    ],
)
def test_b003_json_is_read_under_any_content_type(headers: dict[str, str]) -> None:
    assert post(CHAT, **headers).status == 200


@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded", "text/plain"])
def test_b003_a_page_of_another_origin_must_say_json(content_type: str | None) -> None:
    headers = {"origin": "http://evil.example"}
    if content_type is not None:
        headers["content-type"] = content_type

    answer = post(CHAT, **headers)

    assert answer.status == 400
    assert "Content-Type" in answer.error["message"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert post(b"\xef\xbb\xbf" + json.dumps(CHAT).encode()).status == 200


def test_a_large_body_is_read() -> None:
    body = {"messages": [{"role": "user", "content": "a" * 3_000_000}]}

    assert post(body).status == 200
    assert post({**body, "n": 0}).error["param"] == "n"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1//models", 404),
        ("POST", "/v1/nonsense", 404),
        ("GET", "/nonsense", 404),
        ("POST", "/v1/v1/chat/completions", 404),
    ],
)
def test_b008_unknown_paths_and_methods_have_the_shape(method: str, path: str, status: int) -> None:
    answer = call(make_app(answering()), path, method=method)

    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"


def test_http_exceptions_of_the_layers_around_keep_status_text_and_headers() -> None:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/too-large")
    async def too_large() -> None:
        raise HTTPException(413, "The request body may have at most 5 bytes.", {"X-A": "b"})

    answer = call(app, "/too-large")

    assert answer.status == 413
    assert answer.headers["x-a"] == "b"
    assert answer.error["message"] == "The request body may have at most 5 bytes."


def test_parameters_of_other_routes_are_validated_in_the_same_shape() -> None:
    app = FastAPI()
    install_error_handlers(app)

    @app.get("/number")
    async def number(value: int) -> int:
        return value

    async def work() -> Answer:
        return await Call(app, "/number").answer()

    answer = run(work())

    assert answer.status == 400
    assert answer.error["param"] == "value"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_b125_an_unforeseen_failure_is_a_500_without_its_text(
    path: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(FakeEngine([RuntimeError("boom /Users/x")]))

    answer = call(app, path, {**BODIES[path], "stream": stream})

    assert answer.status == 500
    assert answer.error["type"] == "server_error"
    assert b"boom" not in answer.body
    assert "boom /Users/x" in caplog.text


def test_an_engine_that_ends_without_an_end_is_a_failure() -> None:
    answer = call(make_app(FakeEngine([started()])), PATHS[0], CHAT)

    assert answer.status == 500
