from __future__ import annotations

from collections.abc import Mapping

import pytest
from starlette.types import ASGIApp

from mlx_server.middleware.auth import ApiKeyAuth
from tests.asgi_client import Answer, call
from tests.toy_app import hello_app

KEY = "sk-right"


def ask(headers: Mapping[str, str], *, path: str = "/v1/models", method: str = "GET") -> Answer:
    app: ASGIApp = ApiKeyAuth(hello_app, api_key=KEY)
    return call(app, path, method=method, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-right"},
        {"authorization": "bearer sk-right"},
        {"authorization": "Bearer   sk-right"},
        {"x-api-key": "sk-right"},
        {"authorization": "Bearer of-a-proxy", "x-api-key": "sk-right"},
    ],
    ids=["bearer", "scheme in lower case", "more blanks", "x-api-key", "beside another key"],
)
def test_a_request_with_the_key_passes(headers: Mapping[str, str]) -> None:
    assert ask(headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": ""},
        {"authorization": "sk-right"},
        {"authorization": "Basic sk-right"},
        {"authorization": "Bearer sk-wrong"},
        {"authorization": "Bearer sk-righ"},
        {"authorization": "Bearer sk-right2"},
        {"authorization": "Bearer schlüssel"},
        {"x-api-key": ""},
        {"x-api-key": "sk-wrong"},
    ],
    ids=lambda headers: "; ".join(f"{name}: {value}" for name, value in headers.items()) or "none",
)
def test_any_other_request_is_refused_in_the_error_shape(headers: Mapping[str, str]) -> None:
    answer = ask(headers)
    assert answer.status == 401
    assert answer.error["code"] == "invalid_api_key"
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["param"] is None
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_refusal_says_where_the_key_goes_and_quotes_none() -> None:
    message = ask({"authorization": "Bearer sk-wrong"}).error["message"]
    assert "Authorization: Bearer" in message
    assert "sk-wrong" not in message
    assert KEY not in message


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_monitors_need_no_key(path: str) -> None:
    assert ask({}, path=path).status == 200


@pytest.mark.parametrize("path", ["/health/", "/healthy", "/v1/models/health", "//health"])
def test_a_path_that_looks_like_the_open_one_needs_the_key(path: str) -> None:
    assert ask({}, path=path).status == 401


def test_options_needs_no_key() -> None:
    assert ask({}, method="OPTIONS").status == 200
