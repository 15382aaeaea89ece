"""The HTTP layer: reads a request, asks the engine, shapes the answer. No model logic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter

from mlx_server.api.cache import cache_router
from mlx_server.api.chat import chat_router
from mlx_server.api.completions import completions_router
from mlx_server.api.health import health_router
from mlx_server.api.messages import messages_router
from mlx_server.api.model_list import model_list_router
from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.request_list import request_list_router
from mlx_server.api.responses import responses_router
from mlx_server.api.responses_store import ResponseStore
from mlx_server.api.responses_stored import stored_responses_router
from mlx_server.api.tokens import tokens_router
from mlx_server.config import ServerConfig

if TYPE_CHECKING:
    from mlx_server.engine.engine import Engine


def api_router(config: ServerConfig, engine: Engine) -> APIRouter:
    """All endpoints, under /v1 and, for clients whose base URL lacks it, without."""
    open_requests = OpenRequests(engine)
    responses = ResponseStore(config.state_dir)
    endpoints = APIRouter()
    endpoints.include_router(chat_router(config, open_requests))
    endpoints.include_router(completions_router(config, open_requests))
    endpoints.include_router(responses_router(config, open_requests, responses))
    endpoints.include_router(stored_responses_router(open_requests, responses))
    endpoints.include_router(messages_router(config, open_requests))
    endpoints.include_router(tokens_router(open_requests, responses))
    endpoints.include_router(request_list_router(open_requests))
    endpoints.include_router(model_list_router(engine))
    endpoints.include_router(health_router(engine))
    endpoints.include_router(cache_router(engine))
    router = APIRouter()
    router.include_router(endpoints, prefix="/v1")
    router.include_router(endpoints, include_in_schema=False)
    return router
