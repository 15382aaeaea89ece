from __future__ import annotations

import errno
import json
import shlex
import socket

import pytest

from mlx_server.config import ServerConfig
from mlx_server.greeting import cannot_listen, greeting, model_missing, url_of
from mlx_server.main import bind


def command_of(text: str) -> list[str]:
    return shlex.split(next(line for line in text.splitlines() if line.startswith("  curl ")))


def test_a_model_name_with_quotes_leaves_the_command_whole() -> None:
    command = command_of(greeting("http://127.0.0.1:1", 'it\'s "x"', needs_key=False))
    assert json.loads(command[-1])["model"] == 'it\'s "x"'


def test_the_command_takes_the_key_from_the_environment() -> None:
    command = command_of(greeting("http://127.0.0.1:1", "m", needs_key=True))
    assert "Authorization: Bearer $MLX_SERVER_API_KEY" in command


def test_a_server_without_a_key_asks_for_none() -> None:
    assert "Authorization" not in greeting("http://127.0.0.1:1", "m", needs_key=False)


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")],
)
def test_the_url_reaches_the_socket(host: str, reached_at: str) -> None:
    with bind(host, 0) as listening:
        assert url_of(listening) == f"http://{reached_at}:{listening.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="IPv6 is off")
@pytest.mark.parametrize("host", ["::1", "::"])
def test_the_url_of_an_ipv6_address_has_brackets(host: str) -> None:
    with bind(host, 0) as listening:
        assert url_of(listening) == f"http://[::1]:{listening.getsockname()[1]}"


def test_the_reason_why_a_model_is_missing_is_one_line_of_three() -> None:
    text = model_missing("gemma", "The hub\ncannot be\n  reached.")
    assert text.splitlines()[1] == "The hub cannot be reached."
    assert len(text.splitlines()) == 3
    assert "./run.sh smollm2" in text


def test_the_small_model_is_no_advice_where_it_is_what_is_missing() -> None:
    assert "./run.sh smollm2" not in model_missing("smollm2", "No package index.")


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.EADDRINUSE, "--port"), (errno.EACCES, "--port"), (errno.EADDRNOTAVAIL, "--host")],
)
def test_a_socket_that_cannot_listen_is_one_line_with_advice(number: int, advice: str) -> None:
    text = cannot_listen(ServerConfig(host="10.0.0.1", port=80), OSError(number, "..."))
    assert "port 80 on 10.0.0.1" in text
    assert advice in text
    assert "\n" not in text
