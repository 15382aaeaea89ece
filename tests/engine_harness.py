"""An engine with scripted models on the running event loop, and clients that read from it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mlx_server.catalog import Catalog
from mlx_server.config import EngineConfig, ServerConfig
from mlx_server.engine import engine as engine_module
from mlx_server.engine.engine import Engine
from mlx_server.engine.loader import Load
from mlx_server.engine.open_request import Take
from mlx_server.engine.opening import open_worker
from mlx_server.engine.sequence import (
    Delta,
    GenerationEvent,
    GenerationRequest,
    RawPrompt,
    Started,
)
from mlx_server.errors import ServerError
from tests.patience import HANG_S
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint

_numbers = count()


def request(text: str = "hi", model: str | None = "a", **fields: Any) -> GenerationRequest:
    return GenerationRequest(f"request-{next(_numbers)}", model, RawPrompt(text), **fields)


def nobody(_: GenerationEvent) -> None:
    """Takes the events of a request that should have none."""
    raise AssertionError


async def generate(engine: Engine, asked: GenerationRequest, take: Take) -> None:
    await (await engine.submit(asked, take))


@dataclass
class Client:
    """What one request has got so far."""

    events: list[GenerationEvent] = field(default_factory=list)

    async def read(self, engine: Engine, asked: GenerationRequest) -> Client:
        await generate(engine, asked, self.events.append)
        return self

    def text(self, index: int = 0) -> str:
        return "".join(d.text for d in self.deltas if d.index == index)

    @property
    def deltas(self) -> list[Delta]:
        return [event for event in self.events if isinstance(event, Delta)]

    @property
    def started(self) -> Started:
        (started,) = (event for event in self.events if isinstance(event, Started))
        return started


ONE_BY_ONE = EngineConfig(prefill_step_size=4, max_num_seqs=1, swap_patience_s=0.0)
"""So that scripted answers go to the requests in the order in which they were made."""


@dataclass
class Running:
    engine: Engine
    loader: ScriptedLoader
    scripts: dict[str, Script]

    async def ask(self, *args: Any, **fields: Any) -> str:
        client = await Client().read(self.engine, request(*args, **fields))
        return client.text()

    def begin(self, *args: Any, **fields: Any) -> tuple[Client, asyncio.Task[Client]]:
        client = Client()
        return client, asyncio.create_task(client.read(self.engine, request(*args, **fields)))

    def close_gates(self) -> None:
        for script in self.scripts.values():
            script.gate.clear()

    def open_gates(self) -> None:
        for script in self.scripts.values():
            script.gate.set()


@asynccontextmanager
async def running_engine(
    folder: Path, *, config: EngineConfig | None = None, load: Load | None = None, **scripts: Script
) -> AsyncIterator[Running]:
    paths = [write_scripted_checkpoint(folder / name) for name in scripts]
    loader = ScriptedLoader(**scripts)
    engine = make_engine(folder, paths, config or ONE_BY_ONE, load or loader)
    running = Running(engine, loader, scripts)
    await engine.start()
    try:
        yield running
    finally:
        running.open_gates()
        await engine.close()


def make_engine(folder: Path, paths: list[Path], config: EngineConfig, load: Load) -> Engine:
    server = ServerConfig(
        models=tuple(map(str, paths)),
        aliases={"short": str(paths[0])},
        cache_dir=folder / "cache",
        engine=config,
    )
    return Engine(config, Catalog.from_config(server), load=load)


def hold_opening(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """MLX is there once the event is set, so that all requests before that come at once."""
    gate = threading.Event()

    def open_late(*args: Any, **kwargs: Any) -> Any:
        gate.wait(HANG_S)
        return open_worker(*args, **kwargs)

    monkeypatch.setattr(engine_module, "open_worker", open_late)
    return gate


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def go(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_S):
            await main

    asyncio.run(bounded())


async def outcome(task: Awaitable[Client]) -> ServerError | str:
    try:
        return (await task).text()
    except ServerError as error:
        return error
