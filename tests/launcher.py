"""The server's command with a script for an engine: `python -m tests.launcher OPTIONS`.

The name of the model says how the engine behaves, see `ENGINES` and `fetch`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from typing import Any

from mlx_server import main
from mlx_server.config import ServerConfig
from mlx_server.engine.open_request import Take
from mlx_server.engine.sequence import GenerationRequest
from mlx_server.engine.status import EngineStatus
from mlx_server.errors import EngineStopped, ModelLoadFailed
from tests.fake_engine import MODEL, answering, started
from tests.live_server import LiveEngine

LOAD_S = 0.5
TOKEN_S = 0.05
ANSWER_S = 0.5
BUSY_S = 60.0


@dataclass
class StreamingEngine(LiveEngine):
    """Says a word every TOKEN_S, for `answer_s` seconds; closes as the real engine does."""

    answer_s: float = 0.0
    num_open: int = 0

    async def _play(self, request: GenerationRequest, take: Take) -> None:
        self.num_open += 1
        ends = time.monotonic() + self.answer_s
        *_, word, end = answering("word ").script
        try:
            take(started())
            while time.monotonic() < ends:
                if self.is_closed:
                    raise EngineStopped("The server is shutting down.")
                take(word)
                await asyncio.sleep(TOKEN_S)
            take(end)
        finally:
            self.num_open -= 1

    async def close(self, drain_s: float = 0.0) -> None:
        deadline = time.monotonic() + drain_s
        while self.num_open and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        self.is_closed = True


@dataclass
class LoadingEngine(LiveEngine):
    """Takes LOAD_S to load, like a model; in vain if it `is_broken`."""

    is_broken: bool = False

    async def start(self, preload: str | None = None) -> None:
        self.status_now = EngineStatus(loading=preload)
        outcome = (
            EngineStatus(preload_error="no weights")
            if self.is_broken
            else EngineStatus(model=MODEL, preloaded=MODEL)
        )
        asyncio.get_running_loop().call_later(LOAD_S, self._loaded, outcome)

    def _loaded(self, status: EngineStatus) -> None:
        self.status_now = status


class BusyEngine(StreamingEngine):
    """Its thread is in the middle of a step that takes for ever when it should stop."""

    async def close(self, drain_s: float = 0.0) -> None:
        await asyncio.to_thread(time.sleep, BUSY_S)


ENGINES: dict[str, Any] = {
    "endless": lambda: StreamingEngine(answer_s=BUSY_S),
    "short": lambda: StreamingEngine(answer_s=ANSWER_S),
    "busy": lambda: BusyEngine(answer_s=BUSY_S),
    "slow": LoadingEngine,
    "broken": lambda: LoadingEngine(is_broken=True),
}


def fetch(config: ServerConfig) -> Any:
    if config.models[0] == "missing":
        raise ModelLoadFailed("The hub cannot be reached\nand the model is not in its cache.")


def build(config: ServerConfig, catalog: Any) -> Any:
    return ENGINES[config.models[0]]()


if __name__ == "__main__":
    if "--real" in sys.argv:
        sys.argv.remove("--real")
    else:
        main.fetch_first_model = fetch
        main.build_engine = build
    main.main()
