"""The engine as the rest of the server sees it: requests in, events out, all of it async.

Holds no model itself; `Worker` owns the thread that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

from mlx_server.catalog import Catalog, ModelEntry
from mlx_server.config import EngineConfig
from mlx_server.engine.device import active_memory_bytes
from mlx_server.engine.downloads import Downloads
from mlx_server.engine.loader import Load, load_checkpoint
from mlx_server.engine.media import LoadedImage, load_images
from mlx_server.engine.scheduler import Scheduler
from mlx_server.engine.sequence import (
    ChatPrompt,
    Delta,
    GenerationEvent,
    GenerationRequest,
    ImagePart,
    Progress,
    Sequence,
    Started,
)
from mlx_server.engine.slot import ModelSlot
from mlx_server.engine.status import EngineStatus
from mlx_server.engine.worker import Worker, stopped
from mlx_server.errors import EngineOverloaded, InvalidRequest, ModelLoadFailed, ServerError

Events = asyncio.Queue[GenerationEvent | ServerError]


class Engine:
    """Start it on the event loop that will submit; `load` is how a checkpoint becomes a model."""

    def __init__(
        self, config: EngineConfig, catalog: Catalog, *, load: Load = load_checkpoint
    ) -> None:
        self.catalog = catalog
        self._config = config
        slot = ModelSlot(config, load)
        scheduler = Scheduler(
            slot,
            max_num_seqs=config.max_num_seqs,
            max_decode_stall_s=config.max_decode_stall_s,
            swap_patience_s=config.swap_patience_s,
        )
        self._worker = Worker(slot, scheduler, locate=self._locate, post=self._post)
        self._uids = itertools.count()
        self._channels: dict[str, Events] = {}
        self._num_unfinished = 0
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._downloads = Downloads(catalog)

    async def start(self, preload: str | None = None) -> None:
        """Begin to serve; `preload` names the model that is put into the slot meanwhile."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()
        if preload is not None:
            self._worker.load(self.catalog.resolve(preload).id)

    async def close(self, drain_s: float = 0.0) -> None:
        """Take no more requests, let those that run go on for `drain_s` seconds, then end them."""
        self._is_closed = True
        deadline = time.monotonic() + drain_s
        while self._channels and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        # at once, and not when the step under way is over: connections do not stay for ever
        for channel in self._channels.values():
            channel.put_nowait(stopped())
        self._worker.stop()
        await asyncio.to_thread(self._worker.join, STOP_TIMEOUT_S)

    def status(self) -> EngineStatus:
        status = self._worker.status
        # the thread hears of new requests, and tells of its memory, only between two steps
        return replace(
            status,
            num_waiting=max(len(self._channels) - status.num_running, 0),
            active_memory_bytes=active_memory_bytes(),
        )

    def submit(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """The events of the request, up to the last Delta of each of its `n` sequences.

        Raises what can be known at once: ModelNotFound, EngineOverloaded, an image for a model
        that cannot see. Closing the generator aborts the request.
        """
        if self._is_closed or not self.status().healthy:
            raise stopped()
        entry = self._resolve(request.model)
        images = image_parts(request)
        if entry.is_cached:
            refuse_blind(entry, images)
        if len(self._channels) >= self._config.max_waiting:
            raise EngineOverloaded("Too many requests are waiting. Try again in a moment.")
        if request.max_tokens is None:
            request = replace(request, max_tokens=self._config.default_max_tokens)
        return self._events(request, entry, images)

    def _resolve(self, name: str | None) -> ModelEntry:
        if name:
            return self.catalog.resolve(name)
        status = self.status()
        return self.catalog.resolve(status.loading or status.model)

    async def _events(
        self, request: GenerationRequest, entry: ModelEntry, images: list[ImagePart]
    ) -> AsyncGenerator[GenerationEvent, None]:
        num_ahead = len(self._channels)
        channel: Events = asyncio.Queue()
        self._channels[request.request_id] = channel
        num_open = request.n
        try:
            if not entry.is_cached:
                async for progress in self._downloads.fetch(entry):
                    yield progress
                # what it can do is known only now
                refuse_blind(self.catalog.resolve(entry.id), images)
            if num_ahead:
                yield Progress("queued", 0, num_ahead)
            loaded_images = await load_images(images, self._config.media)
            self._worker.submit(self._make_sequences(request, entry, loaded_images))
            has_started = False
            while num_open:
                event = await channel.get()
                if isinstance(event, ServerError):
                    raise event
                if isinstance(event, Delta) and event.finish_reason is not None:
                    num_open -= 1
                # the other sequences of the request start as well, with the same prompt
                if has_started and not isinstance(event, Delta):
                    continue
                has_started = isinstance(event, Started) or has_started
                yield event
        finally:
            del self._channels[request.request_id]
            if num_open:
                self._worker.abort(request.request_id)

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
        path = self.catalog.local_path(self.catalog.resolve(model))
        if path is None:
            raise ModelLoadFailed("The model's checkpoint is not on this machine any more.")
        return path

    def _post(self, outcome: list[tuple[Sequence, GenerationEvent | ServerError]]) -> None:
        """Called on the MLX thread once a step."""
        assert self._loop is not None
        # RuntimeError: the loop has gone, and with it everybody who waits for an answer
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, outcome)

    def _deliver(self, outcome: list[tuple[Sequence, GenerationEvent | ServerError]]) -> None:
        for sequence, event in outcome:
            channel = self._channels.get(sequence.request.request_id)
            if channel is not None:
                channel.put_nowait(event)


STOP_TIMEOUT_S = 5.0


def image_parts(request: GenerationRequest) -> list[ImagePart]:
    """The images of a chat in the order in which the template will place them."""
    if not isinstance(request.prompt, ChatPrompt):
        return []
    return [
        part
        for message in request.prompt.messages
        for part in message.content
        if isinstance(part, ImagePart)
    ]


def refuse_blind(entry: ModelEntry, images: list[ImagePart]) -> None:
    """Raises InvalidRequest if there are images and the model cannot see."""
    if images and "vision" not in entry.capabilities:
        raise InvalidRequest(
            "This model reads text only. Leave the image out or name a model with vision.",
            param=images[0].param,
        )


def seed_of(seed: int, index: int) -> int:
    """The seed of a choice: the request's for the first, and one of its own for every other."""
    if index == 0:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed}.{index}".encode()).digest()[:8], "big")
