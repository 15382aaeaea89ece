"""Starts this server and the others, says what their processes use, and ends them for certain."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.client import RequestFailed, ask, get_json
from benchmarks.machine import Blas, cpu_s, environment, parse_blas, rss_bytes

ROOT = Path(__file__).parent.parent
POLL_S = 0.02
START_S = 180.0
STOP_S = 8.0
Kind = Literal["mlx_server", "mlx_lm", "mlx_vlm"]
KINDS: tuple[Kind, ...] = ("mlx_server", "mlx_lm", "mlx_vlm")
OURS: Kind = "mlx_server"


class StartFailed(Exception):
    """The server ended, or did not answer in time; the text has the end of its log."""


@dataclass(slots=True)
class Server:
    kind: Kind
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    models: Sequence[Path]
    seconds: dict[str, float] = field(default_factory=dict)
    """From the start of the process to its first 200 of /health, and to its first answer."""

    @property
    def rss_bytes(self) -> int:
        return rss_bytes(self.process.pid)

    @property
    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    @property
    def num_loads(self) -> int | None:
        """How many times a model was loaded, if the server's log tells."""
        return len(re.findall(r": loaded ", self.read_log())) if self.kind == OURS else None

    @property
    def num_threads(self) -> int | None:
        """Of the BLAS, if the server says."""
        found = re.search(r"BLAS: (.*)", self.read_log())
        return parse_blas(found[1]).num_threads if found else None

    def read_log(self) -> str:
        return self.log.read_text(errors="replace")

    def name_of(self, model: Path) -> str:
        """By what a request asks for the model."""
        return model.name if self.kind == OURS else str(model)

    def chat(self, text: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
        """A greedy, streamed request for the first model; `fields` take the place of these."""
        return {
            "model": self.name_of(self.models[0]),
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            **fields,
        }


def command_of(kind: Kind, port: int, models: Sequence[Path], options: Sequence[str]) -> list[str]:
    """Only ours is told of every model; the others are asked for further ones by their paths."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    if kind == OURS:
        named = [word for model in models for word in ("--model", str(model))]
        return [sys.executable, "-m", "mlx_server.main", *named, *where, *options]
    module = {"mlx_lm": ["mlx_lm", "server"], "mlx_vlm": ["mlx_vlm.server"]}[kind]
    return [sys.executable, "-m", *module, "--model", str(models[0]), *where, *options]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve(
    kind: Kind,
    models: Sequence[Path],
    *,
    blas: Blas,
    log: Path,
    options: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that has answered once, for as long as the context lasts. Raises StartFailed."""
    port = free_port()
    with log.open("wb") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            command_of(kind, port, models, options),
            cwd=ROOT,
            env={**environment(blas, is_preloaded=kind != OURS), **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(kind, port, process, log, models)
    try:
        asyncio.run(wait_until_ready(server, began))
        yield server
    finally:
        end(process)


async def wait_until_ready(server: Server, began: float) -> None:
    """Some servers are healthy before their model is there, so each must answer once as well."""
    await until_it_works(server, lambda: get_json(server.port, "/health"))
    server.seconds["health"] = time.perf_counter() - began
    body = server.chat("hi", 1, stream=False)
    await until_it_works(server, lambda: ask(server.port, body, timeout_s=START_S))
    server.seconds["answer"] = time.perf_counter() - began


async def until_it_works(server: Server, attempt: Any) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            await attempt()
            return
        except (OSError, EOFError, ValueError, TimeoutError, RequestFailed) as error:
            if server.process.poll() is not None or time.monotonic() > deadline:
                tail = server.read_log()[-2000:]
                raise StartFailed(f"{server.kind}: {error!r}\n{tail}") from error
        await asyncio.sleep(POLL_S)


def end(process: subprocess.Popen[bytes], patience_s: float = STOP_S) -> None:
    """TERM, then KILL for the whole process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(patience_s)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    process.wait(patience_s)
