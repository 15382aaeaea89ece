"""GET and DELETE /v1/cache: the KV state that is kept for prompts to come, in both tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from mlx_server.models import CacheObject, CacheTier, DeletedCache

if TYPE_CHECKING:
    from mlx_server.engine.engine import Engine
    from mlx_server.engine.status import PrefixCacheStats


def cache_router(engine: Engine) -> APIRouter:
    router = APIRouter(tags=["cache"])

    @router.get("/cache")
    async def show_cache() -> CacheObject:
        """Numbers of the prefix cache as they were after the last step of the engine.

        All but those of the disk are of the loaded model and begin anew when another is loaded.
        """
        return CacheObject(**cache_fields(engine.status().prefix_cache))

    @router.delete("/cache")
    async def clear_cache(response: Response) -> DeletedCache:
        """Forget everything that is kept; the numbers are those before.

        202 means that the engine is busy and will do it as soon as it is not.
        """
        try:
            before = await engine.clear_prefix_cache()
        except TimeoutError:
            response.status_code = 202
            return DeletedCache(deleted=False, **cache_fields(engine.status().prefix_cache))
        return DeletedCache(deleted=True, **cache_fields(before))

    return router


def cache_fields(stats: PrefixCacheStats) -> dict[str, Any]:
    return {
        "ram": CacheTier(
            num_entries=stats.num_entries, num_bytes=stats.num_bytes, max_bytes=stats.max_bytes
        ),
        "disk": CacheTier(
            num_entries=stats.num_disk_entries,
            num_bytes=stats.num_disk_bytes,
            max_bytes=stats.max_disk_bytes,
        ),
        "num_lookups": stats.num_lookups,
        "num_hits": stats.num_hits,
        "num_tokens_asked": stats.num_tokens_asked,
        "num_tokens_cached": stats.num_tokens_cached,
    }
