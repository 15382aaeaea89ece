"""Which model a request means, told from memory where that will do: the disk may be asleep, or the
folder of the loaded model gone.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from mlx_server.catalog import Catalog, ModelEntry
from mlx_server.errors import ModelLoadFailed


class ModelLookup:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._located: dict[str, ModelEntry] = {}
        self._turn = asyncio.Lock()

    async def find(self, name: str | None, current: str | None) -> ModelEntry:
        """The model of that name; without a name it is `current`, the id of what is in the slot or
        on its way there. Raises ModelNotFound.
        """
        known = None if current is None else self._located.get(current)
        if known is not None and (not name or self._catalog.id_without_disk(name) == known.id):
            return known
        # one after the other, so that requests reach the queue in the order in which they came
        async with self._turn:
            return await asyncio.to_thread(self._catalog.resolve, name or current)

    def locate(self, model: str) -> Path:
        """Where to load a model of that id from; for any thread. Raises ModelLoadFailed."""
        entry = self._catalog.resolve(model)
        path = self._catalog.local_path(entry)
        if path is None:
            raise ModelLoadFailed("The model's checkpoint is not on this machine any more.")
        self._located[entry.id] = entry
        return path
