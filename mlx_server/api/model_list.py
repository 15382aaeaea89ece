"""GET /v1/models and /v1/models/{id}: what this server can run, whether or not it is loaded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter

from mlx_server.models import ModelList, ModelObject

if TYPE_CHECKING:
    from mlx_server.catalog import ModelEntry
    from mlx_server.engine.engine import Engine
    from mlx_server.engine.status import EngineStatus


def model_list_router(engine: Engine) -> APIRouter:
    router = APIRouter(tags=["models"])

    # The catalog looks at the disk, which may be slow or asleep.
    @router.get("/models")
    @router.get("/models/", include_in_schema=False)
    async def list_models() -> ModelList:
        """All models a request may name: aliases, configured ones, and those in the local cache."""
        entries = await asyncio.to_thread(engine.catalog.list)
        status = engine.status()
        return ModelList(data=[model_object(entry, status) for entry in entries])

    # Repository ids have a slash in them.
    @router.get("/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> ModelObject:
        """One of the models, by its id or any of its aliases."""
        entry = await engine.resolve(model_id)
        return model_object(entry, engine.status())

    return router


def model_object(entry: ModelEntry, status: EngineStatus) -> ModelObject:
    return ModelObject(
        id=entry.id,
        created=entry.created,
        owned_by=entry.owned_by,
        aliases=list(entry.aliases),
        state=model_state(entry, status),
        capabilities=list(entry.capabilities),
        context_length=entry.context_length,
    )


def model_state(
    entry: ModelEntry, status: EngineStatus
) -> Literal["ready", "loading", "available", "not_downloaded"]:
    if status.loading == entry.id:
        return "loading"
    if status.model == entry.id:
        return "ready"
    return "available" if entry.is_cached else "not_downloaded"
