"""Checkpoints on their way to this machine, each fetched once however many requests wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

from mlx_server.catalog import Catalog, ModelEntry
from mlx_server.engine.sequence import Progress

REPORT_S = 0.5


class Downloads:
    """A fetch goes on when those who asked for it have left: the next one will want it too."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._tasks: dict[str, asyncio.Task[Path]] = {}
        self._progress: dict[str, Progress] = {}

    async def fetch(self, entry: ModelEntry) -> AsyncGenerator[Progress, None]:
        """Ends when the checkpoint is here; raises ModelLoadFailed if it cannot be had."""
        task = self._tasks.get(entry.id) or self._start(entry)
        while not task.done():
            await asyncio.wait([task], timeout=REPORT_S)
            yield self._progress.get(entry.id, Progress("loading"))
        task.result()

    def _start(self, entry: ModelEntry) -> asyncio.Task[Path]:
        def report(stage: str, done: int, total: int) -> None:
            self._progress[entry.id] = Progress("loading", done, total)

        fetching = asyncio.to_thread(self._catalog.ensure_local, entry, report)
        task = asyncio.create_task(fetching)
        self._tasks[entry.id] = task
        task.add_done_callback(lambda done: self._end(entry.id, done))
        return task

    def _end(self, model: str, task: asyncio.Task[Path]) -> None:
        del self._tasks[model]
        self._progress.pop(model, None)
        if not task.cancelled():
            # those who waited have seen it; without them nobody has to
            task.exception()
