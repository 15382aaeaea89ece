"""An engine that plays a script: for the API's tests, which need events and not a model."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from mlx_server.engine.open_request import Take
from mlx_server.engine.sequence import (
    Delta,
    FinishReason,
    GenerationRequest,
    Progress,
    Started,
    TokenLogprob,
)
from mlx_server.engine.status import EngineStatus, PrefixCacheStats
from mlx_server.errors import EngineOverloaded, ModelNotFound

MODEL = "org/fake"


@dataclass(frozen=True)
class FakeEntry:
    id: str = MODEL
    aliases: tuple[str, ...] = ("fake",)
    created: int = 1_700_000_000
    owned_by: str = "org"
    capabilities: tuple[str, ...] = ("completion", "tools")
    context_length: int | None = 4096
    is_cached: bool = True


class FakeCatalog:
    def __init__(self, entries: Sequence[FakeEntry]) -> None:
        self._entries = tuple(entries)

    def list(self) -> tuple[FakeEntry, ...]:
        return self._entries

    def resolve(self, name: str | None) -> FakeEntry:
        for entry in self._entries:
            if not name or name == entry.id or name in entry.aliases:
                return entry
        raise ModelNotFound


@dataclass
class FakeEngine:
    """Plays `script`, which holds events, for every request.

    An exception in the script is raised and an asyncio.Event awaited; `endless` repeats the last
    step until the request is aborted. The last Progress before the start is what a request waits
    for. Names of models are looked up once `disk` is set. `cache_before` is what the cache held
    when it is cleared; None takes too long.
    """

    script: Sequence[Any] = ()
    endless: bool = False
    status_now: EngineStatus = field(
        default_factory=lambda: EngineStatus(model=MODEL, preloaded=MODEL)
    )
    catalog: FakeCatalog = field(default_factory=lambda: FakeCatalog([FakeEntry()]))
    requests: list[GenerationRequest] = field(default_factory=list)
    cache_before: PrefixCacheStats | None = None
    told: dict[str, Progress] = field(default_factory=dict)
    admitted: list[int] = field(default_factory=list)
    is_full: bool = False
    disk: asyncio.Event = field(default_factory=asyncio.Event)
    num_steps: int = 0
    num_closed: int = 0

    def __post_init__(self) -> None:
        self.disk.set()

    def status(self) -> EngineStatus:
        return self.status_now

    def progress(self, request_id: str) -> Progress | None:
        return self.told.get(request_id)

    async def clear_prefix_cache(self) -> PrefixCacheStats:
        if self.cache_before is None:
            raise TimeoutError
        return self.cache_before

    @contextmanager
    def admit(self, num_sequences: int) -> Iterator[None]:
        if self.is_full:
            raise EngineOverloaded("Full.")
        self.admitted.append(num_sequences)
        yield

    async def resolve(self, name: str | None) -> FakeEntry:
        return self.catalog.resolve(name)

    async def submit(self, request: GenerationRequest, take: Take) -> Coroutine[None, None, None]:
        await self.disk.wait()
        self.catalog.resolve(request.model)
        self.requests.append(request)
        return self._play(request, take)

    async def _play(self, request: GenerationRequest, take: Take) -> None:
        try:
            for step in self.script:
                await self._step(step, request, take)
            while self.endless:
                await asyncio.sleep(0)
                await self._step(self.script[-1], request, take)
        finally:
            self.num_closed += 1

    async def _step(self, step: Any, request: GenerationRequest, take: Take) -> None:
        self.num_steps += 1
        if isinstance(step, Progress):
            self.told[request.request_id] = step
        elif isinstance(step, Started):
            self.told.pop(request.request_id, None)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, Started) and request.echo:
            take(replace(step, prompt_text=str(getattr(request.prompt, "content", ""))))
        else:
            take(step)


def started(**fields: object) -> Started:
    values: dict[str, object] = {"model": MODEL, "num_prompt_tokens": 7, "num_cached_tokens": 3}
    return Started(**{**values, **fields})  # type: ignore[arg-type]


def deltas(
    *texts: str,
    index: int = 0,
    finish: FinishReason = FinishReason.STOP,
    logprobs: Sequence[TokenLogprob] = (),
) -> list[Delta]:
    """One Delta for each text, and the end without text; `logprobs` gives each text its token."""
    steps = [
        Delta(index, text, count, tuple(logprobs[count - 1 : count]))
        for count, text in enumerate(texts, start=1)
    ]
    return [*steps, Delta(index, "", len(texts), finish_reason=finish)]


def answering(*texts: str, **fields: object) -> FakeEngine:
    """An engine whose every answer is these texts; `fields` are those of Started."""
    return FakeEngine([started(**fields), *deltas(*texts)])


async def until_steps(engine: FakeEngine, num_steps: int) -> None:
    while engine.num_steps < num_steps:
        await asyncio.sleep(0)
