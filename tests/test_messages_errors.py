"""Errors on the paths of the Messages API, in its own shape, and OpenAI's everywhere else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.types import ASGIApp

from mlx_server.errors import (
    ContextLengthExceeded,
    EngineOverloaded,
    EngineStopped,
    GenerationFailed,
    InvalidRequest,
    ModelNotFound,
    ModelUnavailable,
    RequestCancelled,
    ServerError,
)
from mlx_server.messages_wire import is_messages_path
from mlx_server.middleware.auth import ApiKeyAuth
from mlx_server.middleware.body_guard import BodyGuard
from mlx_server.middleware.request_id import RequestId
from tests.asgi_client import Answer, call, make_app
from tests.fake_engine import FakeEngine, answering
from tests.messages_requests import PATH, body, messages_error
from tests.toy_app import hello_app

PATHS = [PATH, "/v1/messages/count_tokens", "/messages", "//v1/messages", "/v1/messages/batches/b"]
OTHERS = ["/v1/chat/completions", "/v1/messages2", "/v1", "/", "/v1/threads/messages"]


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_the_api(path: str) -> None:
    assert is_messages_path(path)


@pytest.mark.parametrize("path", OTHERS)
def test_paths_of_others(path: str) -> None:
    assert not is_messages_path(path)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("Say it otherwise."), 400, "invalid_request_error"),
        (ContextLengthExceeded(100, 64), 400, "invalid_request_error"),
        (ModelNotFound(), 404, "not_found_error"),
        (RequestCancelled(), 409, "conflict_error"),
        (EngineOverloaded("Full."), 529, "overloaded_error"),
        (ModelUnavailable("Gone."), 503, "api_error"),
        (EngineStopped("Bye."), 503, "api_error"),
        (GenerationFailed("Oh."), 500, "api_error"),
        (ServerError("Oh."), 500, "api_error"),
    ],
)
def test_errors_have_their_status_and_type(
    is_stream: bool, error: ServerError, status: int, kind: str
) -> None:
    answer = call(make_app(FakeEngine([error])), PATH, body(stream=is_stream))

    assert answer.status == status
    found = messages_error(answer)
    assert found["type"] == kind
    assert error.message in found["message"]
    assert ("retry-after" in answer.headers) == (status == 529)


def test_b014_an_unknown_model_is_a_404() -> None:
    answer = call(make_app(answering("ok")), PATH, body(model="no/such"))
    assert (answer.status, messages_error(answer)["type"]) == (404, "not_found_error")


def test_the_parameter_is_in_the_text() -> None:
    named = InvalidRequest("Only so.", param="messages.0.content.1")
    answer = call(make_app(FakeEngine([named])), PATH, body())
    assert messages_error(answer)["message"] == "messages.0.content.1: Only so."


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b'{"a":\xff}'])
def test_b013_what_is_no_json_object_is_a_400(content: bytes) -> None:
    answer = call(make_app(answering("ok")), PATH, content)
    assert (answer.status, messages_error(answer)["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "method", "status", "kind"),
    [
        ("/v1/messages/batches", "POST", 404, "not_found_error"),
        (PATH, "GET", 405, "invalid_request_error"),
    ],
)
def test_b008_paths_and_methods_that_there_are_not(
    path: str, method: str, status: int, kind: str
) -> None:
    answer = call(make_app(answering("ok")), path, method=method)
    assert (answer.status, messages_error(answer)["type"]) == (status, kind)


def test_b125_an_unforeseen_failure_is_a_500_without_its_text() -> None:
    answer = call(make_app(FakeEngine([RuntimeError("boom /Users/x")])), PATH, body())
    assert (answer.status, messages_error(answer)["type"]) == (500, "api_error")
    assert b"boom" not in answer.body


def guarded(headers: Mapping[str, str], path: str = PATH, content: bytes = b"x" * 20) -> Answer:
    app: ASGIApp = ApiKeyAuth(hello_app, api_key="sk-right")
    app = BodyGuard(app, max_bytes=10, idle_timeout_s=1.0, total_timeout_s=1.0)
    return call(RequestId(app), path, content, headers=headers)


def test_a_request_without_the_key_is_told_where_it_goes() -> None:
    answer = guarded({"x-request-id": "req_1"})
    assert answer.status == 401
    error = messages_error(answer)
    assert error["type"] == "authentication_error"
    assert "x-api-key" in error["message"]
    assert answer.json["request_id"] == "req_1"
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "req_1"


def test_a_body_that_is_too_large_is_refused_in_the_shape() -> None:
    answer = guarded({"x-api-key": "sk-right", "content-length": "20"})
    assert (answer.status, messages_error(answer)["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "sk-right", "content-length": "20"}])
def test_other_paths_keep_openais_shape(headers: Mapping[str, str]) -> None:
    answer = guarded(headers, "/v1/chat/completions")
    assert answer.status in (401, 413)
    assert answer.error["type"] == "invalid_request_error"
    assert "request-id" not in answer.headers


def test_a_body_that_grows_too_large_is_refused_in_the_shape() -> None:
    app = make_app(answering("ok"))
    guard = BodyGuard(app, max_bytes=10, idle_timeout_s=1.0, total_timeout_s=1.0)
    answer = call(guard, PATH, body(), headers={"transfer-encoding": "chunked"})
    assert (answer.status, messages_error(answer)["type"]) == (413, "request_too_large")
