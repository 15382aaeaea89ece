from __future__ import annotations

import pytest

from mlx_server.engine.status import EngineStatus
from tests.asgi_client import call, make_app
from tests.fake_engine import FakeCatalog, FakeEngine, FakeEntry

ENTRIES = [
    FakeEntry(),
    FakeEntry("org/next", (), capabilities=("completion", "vision")),
    FakeEntry("local", ("l",), context_length=None),
    FakeEntry("org/far", (), is_cached=False),
]
STATUS = EngineStatus(model="org/fake", loading="org/next", num_running=2, num_waiting=3)
APP = make_app(FakeEngine(catalog=FakeCatalog(ENTRIES), status_now=STATUS))


@pytest.mark.parametrize("path", ["/v1/models", "/models", "/v1/models/"])
def test_all_available_models_are_listed(path: str) -> None:
    body = call(APP, path).json

    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["org/fake", "org/next", "local", "org/far"]
    assert [model["state"] for model in body["data"]] == [
        "ready",
        "loading",
        "available",
        "not_downloaded",
    ]
    assert body["data"][0] == {
        "id": "org/fake",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "org",
        "aliases": ["fake"],
        "state": "ready",
        "capabilities": ["completion", "tools"],
        "context_length": 4096,
    }


@pytest.mark.parametrize(
    ("name", "model"), [("org/next", "org/next"), ("local", "local"), ("l", "local")]
)
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_one_model_is_found_by_id_and_alias(prefix: str, name: str, model: str) -> None:
    answer = call(APP, f"{prefix}/models/{name}")

    assert answer.status == 200
    assert answer.json["id"] == model


def test_an_unknown_model_is_404() -> None:
    answer = call(APP, "/v1/models/no/such")

    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_tells_state_and_model(path: str) -> None:
    answer = call(APP, path)

    assert answer.status == 200
    assert answer.json == {
        "status": "ok",
        "state": "loading",
        "model": "org/fake",
        "num_running": 2,
        "num_waiting": 3,
    }


def test_b125_health_is_503_once_the_engine_has_stopped() -> None:
    answer = call(make_app(FakeEngine(status_now=EngineStatus(is_alive=False))), "/health")

    assert answer.status == 503
    assert answer.json["state"] == "stopped"
