"""GET /health: answers at once whatever the engine is doing, and without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

if TYPE_CHECKING:
    from mlx_server.engine.engine import Engine


def health_router(engine: Engine) -> APIRouter:
    router = APIRouter(tags=["health"])

    @router.get("/health")
    async def health() -> Response:
        """200 while the server can serve, 503 when its engine has stopped."""
        status = engine.status()
        is_ok = status.is_alive
        body = {
            "status": "ok" if is_ok else "error",
            "state": status.state,
            "model": status.model,
            "num_running": status.num_running,
            "num_waiting": status.num_waiting,
        }
        return JSONResponse(body, 200 if is_ok else 503)

    return router
