"""What the engine tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlx_server.engine.sequence import Progress


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Plain numbers of both tiers of the prefix cache; `max_` 0 is a tier that is off.

    A lookup is a prompt that asked for its prefix; its tokens are asked for, and those found are
    cached.
    """

    num_entries: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    num_disk_entries: int = 0
    num_disk_bytes: int = 0
    max_disk_bytes: int = 0
    num_lookups: int = 0
    num_hits: int = 0
    num_tokens_asked: int = 0
    num_tokens_cached: int = 0


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot, whole in itself, that any thread may read. Bytes are those MLX holds now.

    `load_error` says why the last model that was to be loaded is not there; `num_bytes_to_load` is
    the size of the weight files that are being read. `preloaded` is the model named at the start
    once it has been loaded, `preload_error` why it could not be; neither changes after that.
    """

    is_alive: bool = True
    model: str | None = None
    loading: str | None = None
    load_error: str | None = None
    preloaded: str | None = None
    preload_error: str | None = None
    num_bytes_to_load: int = 0
    num_waiting: int = 0
    num_running: int = 0
    active_memory_bytes: int = 0
    prefix_cache: PrefixCacheStats = PrefixCacheStats()

    @property
    def state(self) -> Literal["idle", "loading", "ready", "stopped"]:
        if not self.is_alive:
            return "stopped"
        if self.loading is not None:
            return "loading"
        return "ready" if self.model is not None else "idle"

    @property
    def load_progress(self) -> Progress:
        """How far the load under way is; never at its end, since weights may grow on their way."""
        total = self.num_bytes_to_load
        return Progress("loading", min(self.active_memory_bytes, max(total - 1, 0)), total)
