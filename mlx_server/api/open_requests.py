"""The requests that are being answered: under which ids they are found, listed and ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request

from mlx_server.api.run import Run
from mlx_server.api.sink import EventSink
from mlx_server.engine.sequence import GenerationRequest

if TYPE_CHECKING:
    from mlx_server.engine.engine import Engine


class OpenRequests:
    """Iterates over the runs in the order in which they began."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: dict[str, Run] = {}

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self._runs.values()))

    def begin(self, prompts: Sequence[GenerationRequest], sink: EventSink, request: Request) -> Run:
        """Start to answer `request`, until the run is closed."""
        answer_id = sink.answer_id
        run = Run(
            self._engine,
            prompts,
            sink,
            request.receive,
            request_id=getattr(request.state, "request_id", answer_id),
            on_close=lambda: self._runs.pop(answer_id, None),
        )
        self._runs[answer_id] = run
        return run

    def cancel(self, name: str) -> bool:
        """End what has the id, which is the answer's or the one in the header; False if nothing
        does. Clients may give the same id to several requests.
        """
        named = [run for run in self if name in (run.request_id, run.sink.answer_id)]
        return any([run.cancel() for run in named])
