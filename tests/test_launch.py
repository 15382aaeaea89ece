"""The server as a process: what it prints, which signals stop it, with which status it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlx_server.main import bind
from tests.oneapi_client import CHAT, Connection, passthrough, relay_stream
from tests.patience import HANG_S
from tests.scripted import write_scripted_checkpoint

ROOT = Path(__file__).parent.parent
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "stream": True}

Process = subprocess.Popen[str]


@contextmanager
def launch(*options: str) -> Iterator[Process]:
    command = [sys.executable, "-m", "tests.launcher", *options]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end_of(process: Process) -> tuple[int, str]:
    """The exit status, and what was said on stderr."""
    _, errors = process.communicate(timeout=HANG_S)
    return process.returncode, errors


def address_of(process: Process) -> tuple[str, int]:
    """Where the server listens, once it says so."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://([\d.]+):(\d+)/v1", line):
            return match[1], int(match[2])
    raise AssertionError(f"the server ended: {end_of(process)}")


@contextmanager
def streaming(process: Process) -> Iterator[Connection]:
    """A stream of which a first word has been read."""
    with Connection(address_of(process)) as connection:
        connection.send(passthrough(CHAT, QUESTION))
        while "word" not in connection.line():
            pass
        yield connection


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_b012_one_signal_ends_an_endless_stream_and_the_server(stop: signal.Signals) -> None:
    with (
        launch("--model", "endless", "--port", "0", "--drain-s", "1") as process,
        streaming(process) as connection,
    ):
        began = time.monotonic()
        process.send_signal(stop)
        rest = connection.rest()
        status, errors = end_of(process)
        duration_s = time.monotonic() - began
    assert status == 0
    assert 0.5 < duration_s < 1.5
    assert "Traceback" not in errors
    *_, last, done = relay_stream(rest).forwarded
    assert done == "data: [DONE]"
    assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "error"


def test_an_answer_that_ends_in_time_is_sent_whole() -> None:
    with (
        launch("--model", "short", "--port", "0", "--drain-s", "10") as process,
        streaming(process) as connection,
    ):
        process.send_signal(signal.SIGTERM)
        *_, last, done = relay_stream(connection.rest()).forwarded
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "stop"
        assert done == "data: [DONE]"
        assert end_of(process)[0] == 0


def test_a_second_interrupt_ends_the_server_at_once() -> None:
    with (
        launch("--model", "endless", "--port", "0", "--drain-s", "60") as process,
        streaming(process) as connection,
    ):
        process.send_signal(signal.SIGINT)
        # Two signals before the process has seen the first would count as one.
        for _ in range(20):
            connection.line()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert end_of(process)[0] == -signal.SIGINT
        assert time.monotonic() - began < 1.0


def test_an_engine_that_does_not_stop_cannot_hold_the_process() -> None:
    with (
        launch("--model", "busy", "--port", "0", "--drain-s", "0.2") as process,
        streaming(process),
    ):
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        status, _ = end_of(process)
    assert status == 0
    assert time.monotonic() - began < 0.2 + 1.0


def test_health_answers_while_the_model_loads_and_the_greeting_comes_after() -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    with launch("--model", "slow", "--port", str(port), "--log-level", "warning") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Loading slow ...\n"
        assert state_of(port) == "loading"
        assert address_of(process) == ("127.0.0.1", port)
        assert state_of(port) == "ready"
        assert process.stdout.readline() == "\n"
        assert process.stdout.readline().startswith(f"  curl http://127.0.0.1:{port}{CHAT} ")
        process.send_signal(signal.SIGTERM)
        assert end_of(process) == (0, "")


def state_of(port: int) -> str:
    ask = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            with Connection(("127.0.0.1", port)) as connection:
                return str(connection.ask(ask).json["state"])
        except ConnectionRefusedError:
            assert time.monotonic() < deadline


def test_a_model_that_cannot_be_had_ends_the_start_with_three_lines() -> None:
    with launch("--model", "missing", "--port", "0") as process:
        status, errors = end_of(process)
    assert status == 1
    first, reason, advice = errors.splitlines()
    assert "missing" in first
    assert reason == "The hub cannot be reached and the model is not in its cache."
    assert "./run.sh smollm2" in advice


def test_a_first_model_that_cannot_be_loaded_ends_the_server() -> None:
    with launch("--model", "broken", "--port", "0") as process:
        status, errors = end_of(process)
    assert status == 1
    (line,) = errors.splitlines()
    assert "broken could not be loaded" in line
    assert line.endswith("no weights")


@pytest.mark.parametrize("group_size, is_first", [("64", False), ("128", True)])
def test_kv_quantisation_is_refused_at_the_start_for_every_model(
    tmp_path: Path, group_size: str, is_first: bool
) -> None:
    models = []
    for name, head_dim in (("wide", 64), ("narrow", 32)):
        write_scripted_checkpoint(tmp_path / name, num_attention_heads=1, head_dim=head_dim)
        models += ["--model", str(tmp_path / name)]
    options = [*models, "--kv-bits", "8", "--kv-group-size", group_size, "--port", "0"]
    with launch("--real", *options) as process:
        status, errors = end_of(process)
    assert status == 1
    (line,) = errors.splitlines()
    assert ("wide" if is_first else "narrow") in line
    assert "--kv-group-size" in line


def test_a_port_in_use_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with launch("--model", "endless", "--port", str(port)) as process:
            status, errors = end_of(process)
    assert status == 1
    (line,) = errors.splitlines()
    assert f"port {port}" in line
    assert "--port" in line


def test_a_host_that_is_not_ours_is_one_line_and_status_1() -> None:
    with launch("--model", "endless", "--host", "192.0.2.1", "--port", "0") as process:
        status, errors = end_of(process)
    assert status == 1
    (line,) = errors.splitlines()
    assert "--host" in line


def test_a_request_leaves_one_line_on_stderr_at_level_info() -> None:
    with launch("--model", "short", "--port", "0") as process:
        with Connection(address_of(process)) as connection:
            connection.ask(b"GET /health?secret HTTP/1.1\r\nHost: x\r\n\r\n")
        process.send_signal(signal.SIGTERM)
        _, errors = end_of(process)
    (line,) = errors.splitlines()
    assert re.search(r" INFO .*: GET /health 200 \d+ ms req_\w+$", line)
