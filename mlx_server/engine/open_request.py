"""A request that has not ended: how far it is, and who hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from mlx_server.engine.sequence import Delta, GenerationEvent, Progress, PromptTokens, Started
from mlx_server.errors import ServerError

Take = Callable[[GenerationEvent], None]
"""Called on the event loop for every event, in order. What it raises ends the request."""


@dataclass(slots=True, eq=False)
class OpenRequest:
    """`download` and `prefill` are how far these are. To be made on the event loop."""

    model: str
    num_unfinished: int
    take: Take
    download: Progress | None = None
    prefill: Progress | None = None
    has_started: bool = False
    _end: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def deliver(self, event: GenerationEvent | ServerError) -> None:
        """Nothing is raised here: others are served by the same call of the loop."""
        if isinstance(event, ServerError):
            self.fail(event)
        elif not self._end.done():
            try:
                self._take_in(event)
            except Exception as error:
                self.fail(error)

    def _take_in(self, event: GenerationEvent) -> None:
        if isinstance(event, Delta):
            self.take(event)
            if event.finish_reason is not None:
                self._end_one()
        elif isinstance(event, PromptTokens):
            self.take(event)
            self._end_one()
        elif isinstance(event, Started):
            # the other sequences of the request start as well, with the same prompt
            if not self.has_started:
                self.has_started = True
                self.take(event)
        else:
            if isinstance(event, Progress) and event.stage == "prefill":
                self.prefill = event
            self.take(event)

    def _end_one(self) -> None:
        self.num_unfinished -= 1
        if self.num_unfinished == 0:
            self._end.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._end.done():
            self._end.set_exception(error)
            # who has left before, or waits for something else, does not look at it
            self._end.exception()

    async def ended(self) -> None:
        """Wait for the last event; raises what ends the request before."""
        await self._end
