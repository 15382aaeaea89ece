"""One HTTP request's dealings with the engine: its events go into a sink until either side ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from mlx_server.api.error_handlers import as_server_error
from mlx_server.api.news import News
from mlx_server.api.sink import EventSink
from mlx_server.engine.sequence import GenerationEvent, GenerationRequest, Progress
from mlx_server.errors import GenerationFailed, RequestCancelled, ServerError

if TYPE_CHECKING:
    from mlx_server.engine.engine import Engine


class Run:
    """Generates from its creation until `close`, which aborts whatever is still going on.

    The events go straight into the sink, and whoever waits for `news` is woken; what fails in the
    engine or in the sink arrives as `failure`.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[GenerationRequest],
        sink: EventSink,
        receive: Receive,
        *,
        request_id: str,
        on_close: Callable[[], object],
    ) -> None:
        self.request_id = request_id
        self.failure: ServerError | None = None
        self.ended = False
        self.sink = sink
        self._engine = engine
        self._num_to_accept = len(requests)
        self._prompt_ids = [request.request_id for request in requests]
        self._on_close = on_close
        self._began = time.monotonic()
        self._news = News()
        self._watcher = asyncio.create_task(hang_up(receive))
        self._watcher.add_done_callback(lambda _: self._news.tell())
        self._work = asyncio.create_task(self._generate(requests))
        self._work.add_done_callback(self._end)

    async def _generate(self, requests: Sequence[GenerationRequest]) -> None:
        """All prompts at once; the first that fails ends the others."""
        with self._engine.admit(sum(request.n for request in requests)):
            async with asyncio.TaskGroup() as prompts:
                for source, request in enumerate(requests):
                    prompts.create_task(self._generate_one(source, request))

    async def _generate_one(self, source: int, request: GenerationRequest) -> None:
        def take(event: GenerationEvent) -> None:
            self.sink.take_in(source, event)
            self._news.tell()

        generation = await self._engine.submit(request, take)
        self._num_to_accept -= 1
        self._news.tell()
        await generation

    def _end(self, work: asyncio.Task[None]) -> None:
        self.ended = True
        error = None if work.cancelled() else work.exception()
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            self.failure = self.failure or as_server_error(error)
        elif not self.sink.is_complete and self.failure is None:
            self.failure = GenerationFailed("The answer broke off before its end.")
        self._news.tell()

    async def news(self, deadline: float | None = None) -> None:
        """Wait for events, the end, a failure or `deadline` (loop time); raise ClientDisconnect if
        the client left.
        """
        await self._news.wait(deadline)
        if self._watcher.done():
            raise ClientDisconnect

    @property
    def is_accepted(self) -> bool:
        """The engine has seen all prompts and refused none at once."""
        return self._num_to_accept == 0

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._began

    def progress(self) -> Progress | None:
        """What the first of the prompts that are not read yet waits for, if one is left."""
        told = (self._engine.progress(prompt_id) for prompt_id in self._prompt_ids)
        return next((progress for progress in told if progress is not None), None)

    def cancel(self) -> bool:
        """End it as a failure, for somebody else than its client; False if it has ended already."""
        if self.ended or self.failure is not None:
            return False
        self.failure = RequestCancelled()
        self._work.cancel()
        self._news.tell()
        return True

    async def close(self) -> None:
        self._on_close()
        self._news.close()
        for task in (self._work, self._watcher):
            task.cancel()
        await asyncio.gather(self._work, self._watcher, return_exceptions=True)


async def hang_up(receive: Receive) -> None:
    """Return when the client has closed its side; the request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def run_to_end(run: Run) -> None:
    """Wait until the sink has everything; raises the failure, or ClientDisconnect, and has aborted
    then.

    Nothing keeps the connection alive meanwhile: whatever was sent would fix the status before the
    outcome is known.
    """
    try:
        while not run.ended and run.failure is None:
            await run.news()
    finally:
        await run.close()
    if run.failure is not None:
        raise run.failure
