"""What the engine tells of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """A snapshot, whole in itself, that any thread may read. Bytes are those MLX holds now.

    `load_error` says why the last model that was to be loaded is not there; `num_bytes_to_load` is
    the size of the weight files that are being read.
    """

    is_alive: bool = True
    model: str | None = None
    loading: str | None = None
    load_error: str | None = None
    num_bytes_to_load: int = 0
    num_waiting: int = 0
    num_running: int = 0
    active_memory_bytes: int = 0

    @property
    def healthy(self) -> bool:
        return self.is_alive

    @property
    def state(self) -> Literal["idle", "loading", "ready", "stopped"]:
        if not self.is_alive:
            return "stopped"
        if self.loading is not None:
            return "loading"
        return "ready" if self.model is not None else "idle"
