"""The smallest apps to put a middleware around."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.types import Receive, Scope, Send

from mlx_server.api.error_handlers import install_error_handlers


async def hello_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 200 to everything, without reading it."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def echo(request: Request) -> dict[str, object]:
    """What arrived of the request."""
    body = await request.body()
    return {
        "num_bytes": len(body),
        "text": body[:1000].decode(),
        "headers": dict(request.headers),
        "request_id": request.state.request_id if "request_id" in request.state else None,
    }


def add_echo(app: FastAPI) -> FastAPI:
    app.add_api_route("/echo", echo, methods=["POST"])
    return app


def echo_app() -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)
    return add_echo(app)
