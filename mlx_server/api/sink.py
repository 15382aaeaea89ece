"""Where the events of one HTTP request end up: counts, the model's name, what is still open.

The four answers (chat or completion, whole or streamed) are sinks; each only says how an event
looks on the wire.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from mlx_server import __version__
from mlx_server.engine.sequence import (
    Delta,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Prepared,
    Started,
)
from mlx_server.models import Usage

SYSTEM_FINGERPRINT = f"fp_mlx_server_{__version__}"


class EventSink(ABC):
    """Takes the events of one or more prompts, each of which has `n` choices.

    Prompt `source` has the choices from index `source * n` on.
    """

    def __init__(self, answer_id: str, requests: Sequence[GenerationRequest]) -> None:
        self.answer_id = answer_id
        self.created = int(time.time())
        self.model = requests[0].model or ""
        self.has_started = False
        self._unprepared = set(range(len(requests)))
        self._n = requests[0].n
        self._num_open_choices = len(requests) * self._n
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_completion_tokens = [0] * self._num_open_choices

    @property
    def may_begin(self) -> bool:
        """There is something to send, and no prompt that could still be refused."""
        return self.has_started and not self._unprepared

    @property
    def is_complete(self) -> bool:
        return self._num_open_choices == 0

    def take_in(self, source: int, event: GenerationEvent) -> None:
        if isinstance(event, Delta):
            index = source * self._n + event.index
            self._num_completion_tokens[index] = event.num_completion_tokens
            if event.finish_reason is not None:
                self._num_open_choices -= 1
            self.wrote(index, event)
        elif isinstance(event, Prepared | Started):
            self._unprepared.discard(source)
            if isinstance(event, Started):
                self._start(source, event)

    def _start(self, source: int, event: Started) -> None:
        self.model = event.model
        self.has_started = True
        self._num_prompt_tokens += event.num_prompt_tokens
        self._num_cached_tokens += event.num_cached_tokens
        for index in range(source * self._n, (source + 1) * self._n):
            self.opened(index, event)

    @abstractmethod
    def opened(self, index: int, started: Started) -> None:
        """The prompt of choice `index` is read; its text comes next."""

    @abstractmethod
    def wrote(self, index: int, delta: Delta) -> None:
        """Choice `index` has new text, or its end."""

    def num_reasoning_tokens(self) -> int:
        """Those of all choices so far, for answers that tell reasoning from the rest."""
        return 0

    def usage(self) -> Usage:
        num_completion_tokens = sum(self._num_completion_tokens)
        usage: Usage = {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": num_completion_tokens,
            "total_tokens": self._num_prompt_tokens + num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._num_cached_tokens},
        }
        if num_reasoning_tokens := self.num_reasoning_tokens():
            usage["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
        return usage


def finish_reason_on_wire(reason: FinishReason) -> str:
    # Whatever else cut an answer short, the client must not take it for a finished one.
    return "stop" if reason is FinishReason.STOP else "length"
