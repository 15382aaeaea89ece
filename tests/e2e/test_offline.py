"""Models that are on this machine are served without any connection to another."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.checkpoints import tiny_gemma3, tiny_llama
from tests.tiny_server import tiny_server


@pytest.fixture
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Connections and look-ups that leave this machine, each of which fails as well."""
    seen: list[Any] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
            seen.append(address)
            raise OSError("no network")
        connect(self, address)

    def guarded_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in ("127.0.0.1", "::1", "localhost"):
            seen.append(host)
            raise OSError("no network")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    return seen


def test_b120_local_models_are_listed_loaded_swapped_and_run_without_a_network(
    only_loopback: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "absent"))
    with tiny_server(tiny_llama(tmp_path / "a"), tiny_gemma3(tmp_path / "b")) as served:
        listed = served.client.get("/v1/models").json()["data"]
        assert {"a", "b"} <= {model["id"] for model in listed}
        for model in ("a", "b", "a"):
            assert served.chat(model=model, max_tokens=3)["model"] == model
    assert only_loopback == []


def test_b014_unknown_repository_is_refused_without_a_network(
    only_loopback: list[Any], tmp_path: Path
) -> None:
    with tiny_server(tiny_llama(tmp_path / "a")) as served:
        answer = served.client.post(
            "/v1/chat/completions",
            json={"model": "no/such-model", "messages": [{"role": "user", "content": "hi"}]},
        )
    assert answer.status_code == 404
    assert only_loopback == []
