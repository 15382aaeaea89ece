"""The whole server on a real port, with tiny random checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx

from mlx_server.catalog import Catalog
from mlx_server.config import EngineConfig, ServerConfig
from mlx_server.engine.engine import Engine
from mlx_server.main import create_app
from tests.live_server import live_server
from tests.scripted import ScriptedLoader
from tests.scripted_server import Served


@contextmanager
def tiny_server(
    *paths: Path, engine_config: EngineConfig | None = None, cache_dir: Path | None = None
) -> Iterator[Served]:
    """Serve the checkpoints at `paths` by their folders' names; the first one is the default."""
    config = replace(
        ServerConfig(),
        models=tuple(map(str, paths)),
        drain_s=0.0,
        cache_dir=cache_dir or paths[0].parent / "cache",
        engine=engine_config or EngineConfig(),
    )
    engine = Engine(config.engine, Catalog.from_config(config))
    with live_server(create_app(config, engine), config) as address:
        base = f"http://{address[0]}:{address[1]}"
        with httpx.Client(base_url=base, timeout=60.0, trust_env=False) as client:
            yield Served(address, client, engine, ScriptedLoader())
