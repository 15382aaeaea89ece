"""A worker with scripted models, and what it posts."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_server.config import EngineConfig
from mlx_server.engine.scheduler import Scheduler
from mlx_server.engine.sequence import (
    Delta,
    GenerationEvent,
    Progress,
    RawPrompt,
    Sequence,
    Started,
)
from mlx_server.engine.slot import ModelSlot
from mlx_server.engine.worker import Worker
from mlx_server.errors import ServerError
from tests.engine_runs import make_sequence
from tests.patience import HANG_S
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint

# A step is under way on the device when an abort arrives, and another one has been begun.
TOKENS_AHEAD = 2
Outcome = list[tuple[Sequence, GenerationEvent | ServerError]]


def ask(text: str = "hi", model: str = "a", **fields: Any) -> Sequence:
    """A request for an answer as long as the script."""
    return make_sequence(RawPrompt(text), model=model, max_tokens=None, top_logprobs=None, **fields)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


class Harness:
    """`posts` are the outcomes in the order in which they came; the other events are per uid."""

    def __init__(
        self, folder: Path, *, max_num_seqs: int, config: EngineConfig, scripts: dict[str, Script]
    ) -> None:
        self.paths = {name: write_scripted_checkpoint(folder / name) for name in scripts}
        self.loader = ScriptedLoader(**scripts)
        self.slot = ModelSlot(config, self.loader)
        self.scheduler = Scheduler(
            self.slot, max_num_seqs=max_num_seqs, swap_patience_s=config.swap_patience_s
        )
        self.worker = Worker(
            self.slot, self.scheduler, locate=self.paths.__getitem__, post=self._post
        )
        self.posts: list[Outcome] = []
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()

    def _post(self, outcome: Outcome) -> None:
        self.posts.append(outcome)
        self._arrived.put(None)

    def submit(self, *sequences: Sequence) -> None:
        for sequence in sequences:
            self.worker.submit([sequence])

    def events(self, sequence: Sequence) -> list[GenerationEvent | ServerError]:
        return [event for post in list(self.posts) for s, event in post if s is sequence]

    def wait_for(
        self, sequence: Sequence, condition: Callable[[GenerationEvent | ServerError], bool]
    ) -> GenerationEvent | ServerError:
        """The first event of the sequence for which the condition holds."""
        end = time.monotonic() + HANG_S
        while True:
            for event in self.events(sequence):
                if condition(event):
                    return event
            self._arrived.get(timeout=max(end - time.monotonic(), 0.0))

    def wait_for_start(self, sequence: Sequence) -> Started:
        event = self.wait_for(sequence, lambda event: isinstance(event, Started))
        assert isinstance(event, Started)
        return event

    def wait_for_tokens(self, sequence: Sequence, num_tokens: int) -> None:
        self.wait_for(
            sequence,
            lambda event: isinstance(event, Delta) and event.num_completion_tokens >= num_tokens,
        )

    def finish(self, sequence: Sequence) -> str | ServerError:
        """The text of the answer, or the error in its place."""
        end = self.wait_for(sequence, is_last)
        if isinstance(end, ServerError):
            return end
        return "".join(e.text for e in self.events(sequence) if isinstance(e, Delta))

    def run(self, sequence: Sequence) -> str | ServerError:
        self.submit(sequence)
        return self.finish(sequence)

    def stages(self, sequence: Sequence) -> list[str]:
        return [e.stage for e in self.events(sequence) if isinstance(e, Progress)]


def is_last(event: GenerationEvent | ServerError) -> bool:
    return isinstance(event, ServerError) or (
        isinstance(event, Delta) and event.finish_reason is not None
    )


@contextmanager
def running_worker(
    folder: Path,
    *,
    max_num_seqs: int = 1,
    config: EngineConfig | None = None,
    **scripts: Script,
) -> Iterator[Harness]:
    harness = Harness(
        folder,
        max_num_seqs=max_num_seqs,
        config=config or EngineConfig(prefill_step_size=4, swap_patience_s=0.0),
        scripts=scripts,
    )
    harness.worker.start()
    try:
        yield harness
    finally:
        for script in scripts.values():
            script.gate.set()
        harness.worker.stop()
        assert harness.worker.join(HANG_S)
