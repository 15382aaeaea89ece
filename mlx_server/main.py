"""Puts the parts together: the ASGI app, the server around it, and the command that starts both."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from mlx_server import __version__
from mlx_server.api import api_router
from mlx_server.api.error_handlers import install_error_handlers
from mlx_server.catalog import Catalog
from mlx_server.cli import parse_args
from mlx_server.config import LOCAL_PAGES, KVQuantisation, ServerConfig
from mlx_server.engine.engine import Engine
from mlx_server.errors import ServerError
from mlx_server.greeting import (
    cannot_listen,
    greeting,
    model_failed,
    model_missing,
    stopping,
    url_of,
)
from mlx_server.kv_heads import refuse_heads_that_no_group_divides
from mlx_server.middleware.auth import ApiKeyAuth
from mlx_server.middleware.body_guard import BodyGuard
from mlx_server.middleware.connection import Connection
from mlx_server.middleware.request_id import RequestId
from mlx_server.model_dimensions import ModelDimensions
from mlx_server.progress import TerminalProgress

logger = logging.getLogger("mlx_server.main")  # __name__ is "__main__" when this file is run

LOCAL_ORIGIN = r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"

# Routers keep idle connections for 90 s and do not repeat a request on one that we closed.
KEEP_ALIVE_S = 120

# Of the time for a stop, what is kept for the last bytes of answers and for KV state on its way to
# disk; and what a stop takes where no time was given.
FAREWELL_S = 0.5
STOP_S = 0.8

POLL_S = 0.1


class App(FastAPI):
    """FastAPI inside the middleware of this server.

    Ours goes around all of FastAPI's own, since the answer to an unforeseen exception is made in
    the outermost of those and must carry the same headers as every other one.
    """

    def __init__(self, config: ServerConfig, **settings: Any) -> None:
        super().__init__(**settings)
        self.config = config

    def build_middleware_stack(self) -> ASGIApp:
        config = self.config
        app = super().build_middleware_stack()
        if config.api_key is not None:
            app = ApiKeyAuth(app, api_key=config.api_key)
        app = BodyGuard(
            app,
            max_bytes=config.max_body_bytes,
            idle_timeout_s=config.body_idle_timeout_s,
            total_timeout_s=config.body_total_timeout_s,
        )
        return CORSMiddleware(
            RequestId(app),
            allow_origins=[o for o in config.cors_origins if o != LOCAL_PAGES],
            allow_origin_regex=LOCAL_ORIGIN if LOCAL_PAGES in config.cors_origins else None,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )


def create_app(config: ServerConfig, engine: Engine) -> FastAPI:
    """The ASGI app; its lifespan starts the engine with the first of the models, and closes it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await engine.start(config.models[0])
        yield
        await engine.close()

    app = App(
        config,
        title="mlx_server",
        version=__version__,
        lifespan=lifespan,
        # Most clients would lose the body of a POST on the way to the path without the slash.
        redirect_slashes=False,
    )
    app.include_router(api_router(config, engine))
    install_error_handlers(app)
    return app


def uvicorn_config(app: ASGIApp, config: ServerConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        # Not "auto": the body guard makes up for what h11 lets pass, not for what others do.
        http=Connection,
        ws="none",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=answers_s(config) + FAREWELL_S,  # type: ignore[arg-type]  # no int needed
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )


def answers_s(config: ServerConfig) -> float:
    """How long answers may go on at a stop, so that the process has ended after `drain_s`."""
    return max(config.drain_s - FAREWELL_S, 0.0)


class Server(uvicorn.Server):
    """Stops on one signal: running answers get their time, then the process ends with status 0."""

    def __init__(self, app: ASGIApp, config: ServerConfig, engine: Engine) -> None:
        super().__init__(uvicorn_config(app, config))
        self.engine = engine
        self.answers_s = answers_s(config)
        self.exit_status = 0

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # The engine ends what is left while the connections still stand, so that a stream closes
        # with an error of ours and not in the middle of a line.
        closing = asyncio.create_task(self.engine.close(self.answers_s))
        await super().shutdown(sockets)
        await closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Unlike uvicorn's, does not raise the signal again at the end: stopping is no failure."""
        if self.should_exit and sig == signal.SIGINT:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        elif not self.should_exit:
            self.should_exit = True
            if self.engine.status().num_running:
                print(stopping(self.answers_s), file=sys.stderr)
            # Nothing can interrupt the MLX thread in the middle of a step, such as a load.
            timer = threading.Timer(
                max(self.answers_s + FAREWELL_S, STOP_S), leave, [self.exit_status]
            )
            timer.daemon = True
            timer.start()


def leave(status: int) -> None:
    """End the process, whatever its threads are doing."""
    sys.stdout.flush()
    logging.shutdown()
    os._exit(status)


async def serve(config: ServerConfig, engine: Engine, listening: socket.socket) -> int:
    """Serve until a signal or until the first model fails; return the process's exit status."""
    server = Server(create_app(config, engine), config, engine)
    announcing = asyncio.create_task(announce(server, config, listening))
    await server.serve(sockets=[listening])
    announcing.cancel()
    return server.exit_status


async def announce(server: Server, config: ServerConfig, listening: socket.socket) -> None:
    """Say how to reach the server once its first model is loaded; stop it if that has failed."""
    with TerminalProgress() as report:
        while True:
            status = server.engine.status()
            if total := status.num_bytes_to_load:
                report("load", total if status.preloaded else status.load_progress.done, total)
            if server.started and (model := status.preloaded) is not None:
                needs_key = config.api_key is not None
                print(greeting(url_of(listening), model, needs_key=needs_key), flush=True)
                return
            if status.preload_error is not None:
                break
            await asyncio.sleep(POLL_S)
    print(model_failed(config.models[0], status.preload_error), file=sys.stderr)
    server.exit_status = 1
    server.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Reserve the port without taking connections yet; raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Where a name has addresses of both kinds, clients try 127.0.0.1 more often than ::1.
    family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def build_engine(config: ServerConfig, catalog: Catalog) -> Engine:
    return Engine(config.engine, catalog)


def fetch_first_model(config: ServerConfig) -> Catalog:
    """The catalog, with its first model on this machine; raises ServerError if it cannot be had."""
    catalog = Catalog.from_config(config)
    with TerminalProgress() as report:
        catalog.ensure_local(catalog.resolve(config.models[0]), report)
    return catalog


def refuse_heads(catalog: Catalog, name: str, wanted: KVQuantisation) -> None:
    """Raises ModelLoadFailed; what is not on this machine yet is tried when it is loaded."""
    path = catalog.local_path(catalog.resolve(name))
    if path is not None:
        refuse_heads_that_no_group_divides(ModelDimensions.read(path), wanted)


def set_up_logging(level: str) -> None:
    # Other packages log what clients sent, such as the URLs of their images, at INFO.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("mlx_server").setLevel(level.upper())


def run(config: ServerConfig) -> int:
    set_up_logging(config.log_level)
    try:
        listening = bind(config.host, config.port)
    except OSError as error:
        print(cannot_listen(config, error), file=sys.stderr)
        return 1
    with listening:
        try:
            catalog = fetch_first_model(config)
        except ServerError as error:
            print(model_missing(config.models[0], error.message), file=sys.stderr)
            return 1
        if config.engine.kv_quantisation is not None:
            for name in config.models:
                try:
                    refuse_heads(catalog, name, config.engine.kv_quantisation)
                except ServerError as error:
                    print(model_failed(name, error.message), file=sys.stderr)
                    return 1
        print(f"Loading {config.models[0]} ...", flush=True)
        return asyncio.run(serve(config, build_engine(config, catalog), listening))


def main(argv: Sequence[str] | None = None) -> None:
    config = parse_args(argv)
    try:
        status = run(config)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    leave(status)


if __name__ == "__main__":
    main()
