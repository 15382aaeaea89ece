"""The engine as the rest of the server sees it: requests in, events out, all of it async.

Holds no model itself; `Worker` owns the thread that does, and with it MLX, which is not in the
process before the server listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_server.catalog import Catalog, ModelEntry
from mlx_server.config import EngineConfig
from mlx_server.engine.downloads import Downloads
from mlx_server.engine.model_lookup import ModelLookup
from mlx_server.engine.open_request import OpenRequest, Take
from mlx_server.engine.opening import open_worker
from mlx_server.engine.request_images import image_parts, refuse_blind, without_urls
from mlx_server.engine.sequence import (
    GenerationEvent,
    GenerationRequest,
    Progress,
    Sequence,
)
from mlx_server.engine.status import EngineStatus, PrefixCacheStats
from mlx_server.errors import (
    EngineOverloaded,
    EngineStopped,
    ServerError,
)

if TYPE_CHECKING:
    from mlx_server.engine.loader import Load
    from mlx_server.engine.media import LoadedImage
    from mlx_server.engine.worker import Worker

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0
CLEAR_TIMEOUT_S = 5.0


class Engine:
    """Start it on the event loop that will submit; `load` is how a checkpoint becomes a model."""

    def __init__(self, config: EngineConfig, catalog: Catalog, *, load: Load | None = None) -> None:
        self.catalog = catalog
        self._config = config
        self._load = load
        self._worker: Worker | None = None
        self._opening: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._status_without_worker = EngineStatus()
        self._uids = itertools.count()
        self._open: dict[str, OpenRequest] = {}
        self._num_admitted = 0
        self._preload: str | None = None
        self._preloaded: str | None = None
        self._preload_error: str | None = None
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._downloads = Downloads(catalog)
        self._lookup = ModelLookup(catalog)

    async def start(self, preload: str | None = None) -> None:
        """Begin to serve; `preload` names the model that is put into the slot meanwhile.

        MLX comes into the process meanwhile as well; requests wait for it.
        """
        self._loop = asyncio.get_running_loop()
        model = None if preload is None else self.catalog.resolve(preload).id
        self._preload = model
        self._status_without_worker = EngineStatus(loading=model)
        self._opening = asyncio.create_task(self._open_worker(model))

    async def _open_worker(self, preload: str | None) -> None:
        try:
            worker = await asyncio.to_thread(
                open_worker, self._config, self._load, locate=self._locate, post=self._post
            )
        except Exception:
            # whatever it is, nobody would hear of it from a task of its own
            logger.exception("MLX cannot be used")
            reason = "MLX cannot be used on this machine; the log has the cause."
            self._preload_error = reason
            self._status_without_worker = EngineStatus(is_alive=False, load_error=reason)
            return
        if not self._is_closed:
            if preload is not None:
                worker.load(preload)
            worker.start()
            self._worker = worker

    async def _opened_worker(self) -> Worker:
        """Waits until MLX is there; raises EngineStopped if it never will be."""
        # who comes the moment it is there does not overtake those who have waited for it
        async with self._turn:
            if self._worker is None and self._opening is not None:
                await asyncio.wait([self._opening])
        if self._worker is None:
            raise EngineStopped
        return self._worker

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, let those that run go on for `drain_s` seconds, then end them."""
        self._is_closed = True
        deadline = time.monotonic() + drain_s
        while self._open and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        # at once, and not when the step under way is over: connections do not stay for ever
        for opened in self._open.values():
            opened.fail(EngineStopped())
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=STOP_TIMEOUT_S)
        self._status_without_worker = EngineStatus(is_alive=False)
        if self._worker is not None:
            self._worker.stop()
            await asyncio.to_thread(self._worker.join, STOP_TIMEOUT_S)

    def status(self) -> EngineStatus:
        if self._worker is None:
            return replace(
                self._status_without_worker,
                preload_error=self._preload_error,
                num_waiting=self._num_unfinished,
            )
        # MLX is in the process now
        from mlx_server.engine.device import active_memory_bytes

        status = self._worker.status
        self._note_preload(status)
        # the thread hears of new requests, and tells of its memory, only between two steps
        return replace(
            status,
            preloaded=self._preloaded,
            preload_error=self._preload_error,
            num_waiting=max(self._num_unfinished - status.num_running, 0),
            active_memory_bytes=active_memory_bytes(),
        )

    def _note_preload(self, status: EngineStatus) -> None:
        """Remember how the first load ended: others may follow before anybody asks for that one."""
        if self._preload is None or self._preloaded is not None or self._preload_error is not None:
            return
        if status.model == self._preload:
            self._preloaded = self._preload
        elif status.load_error is not None:
            self._preload_error = status.load_error

    @property
    def _num_unfinished(self) -> int:
        """The answers that wait or run."""
        return sum(opened.num_unfinished for opened in self._open.values())

    def progress(self, request_id: str) -> Progress | None:
        """What the request waits for at this moment; None once it waits no more, and before its
        events are asked for.
        """
        opened = self._open.get(request_id)
        if opened is None or opened.has_started:
            return None
        if told := opened.download or opened.prefill:
            return told
        status = self.status()
        if status.loading == opened.model:
            return status.load_progress
        return Progress("queued", 0, list(self._open).index(request_id))

    async def clear_prefix_cache(self) -> PrefixCacheStats:
        """Forget all KV state that is kept, on disk as well; returns the numbers before.

        Raises TimeoutError when the MLX thread is busy for long, as with a load: it is done then
        as soon as that is over.
        """
        clearing = asyncio.create_task(self._clear_prefix_cache())
        await asyncio.wait([clearing], timeout=CLEAR_TIMEOUT_S)
        if not clearing.done():
            raise TimeoutError
        return clearing.result()

    async def _clear_prefix_cache(self) -> PrefixCacheStats:
        worker = await self._opened_worker()
        return await asyncio.wrap_future(worker.clear_prefix_cache())

    @contextlib.contextmanager
    def admit(self, num_sequences: int) -> Iterator[None]:
        """Places for the answers to one client, whose requests are submitted meanwhile.

        Raises EngineOverloaded; but who comes alone is let in whatever the number, since waiting
        would not help.
        """
        if self._num_admitted and self._num_admitted + num_sequences > self._config.max_waiting:
            raise EngineOverloaded(
                "Too many answers are waiting. Try again in a moment, or ask for fewer at a time."
            )
        self._num_admitted += num_sequences
        try:
            yield
        finally:
            self._num_admitted -= num_sequences

    async def submit(self, request: GenerationRequest, take: Take) -> Coroutine[None, None, None]:
        """Let a request in; what is returned generates, and ends behind the last Delta of each of
        its `n` sequences. `take` gets the events.

        Raises what can be known at once: ModelNotFound, an image for a model that cannot see.
        The coroutine raises what fails later; cancelling it aborts the request.
        """
        self._refuse_when_stopped()
        entry = await self.resolve(request.model)
        self._refuse_when_stopped()
        if entry.is_cached:
            refuse_blind(entry, request)
        request = replace(request, default_max_tokens=self._config.default_max_tokens)
        return self._generate(request, entry, take)

    def _refuse_when_stopped(self) -> None:
        if self._is_closed or not self.status().is_alive:
            raise EngineStopped

    async def resolve(self, name: str | None) -> ModelEntry:
        """The model of that name, or the loaded one; raises ModelNotFound."""
        status = self.status()
        return await self._lookup.find(name, status.loading or status.model)

    async def _generate(self, request: GenerationRequest, entry: ModelEntry, take: Take) -> None:
        opened = self._open[request.request_id] = OpenRequest(entry.id, request.n, take)
        worker = None
        try:
            if not entry.is_cached:
                async for progress in self._downloads.fetch(entry):
                    opened.download = progress
                opened.download = None
                # what it can do is known only now
                refuse_blind(await self.resolve(entry.id), request)
            worker = await self._opened_worker()
            images = await self._load_images(request)
            request = without_urls(request)
            worker.submit(self._make_sequences(request, entry, images))
            # they are large, and nothing here needs them until the answer ends
            del images
            await opened.ended()
        finally:
            del self._open[request.request_id]
            if worker is not None and opened.num_unfinished:
                worker.abort(request.request_id)

    async def _load_images(self, request: GenerationRequest) -> list[LoadedImage]:
        # what decodes pictures has come with MLX
        from mlx_server.engine.media import load_images

        return await load_images(image_parts(request), self._config.media)

    def _make_sequences(
        self, request: GenerationRequest, entry: ModelEntry, images: list[LoadedImage]
    ) -> list[Sequence]:
        seed = request.sampling.seed
        deadline = time.monotonic() + self._config.request_timeout_s
        return [
            Sequence(
                uid=next(self._uids),
                request=request,
                index=index,
                model=entry.id,
                seed=secrets.randbits(64) if seed is None else seed_of(seed, index),
                deadline=deadline,
                images=tuple(images),
            )
            for index in range(request.n)
        ]

    def _locate(self, model: str) -> Path:
        """Called on the MLX thread when a load begins."""
        if self._worker is not None:
            # the last moment at which the status tells of the load before this one
            self._note_preload(self._worker.status)
        return self._lookup.locate(model)

    def _post(self, outcome: list[tuple[Sequence, GenerationEvent | ServerError]]) -> None:
        """Called on the MLX thread once a step."""
        assert self._loop is not None
        # RuntimeError: the loop has gone, and with it everybody who waits for an answer
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, outcome)

    def _deliver(self, outcome: list[tuple[Sequence, GenerationEvent | ServerError]]) -> None:
        for sequence, event in outcome:
            opened = self._open.get(sequence.request.request_id)
            if opened is not None:
                opened.deliver(event)


def seed_of(seed: int, index: int) -> int:
    """The seed of a choice: the request's for the first, and one of its own for every other."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}.{index}".encode()).digest()[:8], "big")
