"""Waits for the prompt of a request that shall not be answered."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request

from mlx_server.api.open_requests import OpenRequests
from mlx_server.api.run import run_to_end
from mlx_server.api.sink import EventSink
from mlx_server.engine.sequence import (
    Delta,
    GenerationEvent,
    GenerationRequest,
    PromptOnly,
    PromptTokens,
    Started,
)

PROMPT_ONLY = PromptOnly()


async def prompt_of(
    asked: GenerationRequest,
    request: Request,
    open_requests: OpenRequests,
    wanted: PromptOnly = PROMPT_ONLY,
) -> PromptTokens:
    """The prompt that an answer to `asked` would begin with; raises what such an answer would."""
    asked = replace(asked, n=1, only_prepare=wanted)
    sink = PromptSink(asked)
    await run_to_end(open_requests.begin([asked], sink, request))
    assert sink.prompt is not None
    return sink.prompt


class PromptSink(EventSink):
    """Ends with the one event of its request, at which nothing has started."""

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__(request.request_id, [request])
        self.prompt: PromptTokens | None = None

    @property
    def is_complete(self) -> bool:
        return self.prompt is not None

    def take_in(self, source: int, event: GenerationEvent) -> None:
        if isinstance(event, PromptTokens):
            self.model = event.model
            self.prompt = event

    def opened(self, index: int, started: Started) -> None:
        raise AssertionError

    def wrote(self, index: int, delta: Delta) -> None:
        raise AssertionError
