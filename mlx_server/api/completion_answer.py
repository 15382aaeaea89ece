"""Shapes events into a text completion, whole or as chunks: the model's text as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from mlx_server.api.completion_logprobs import (
    TokenOffsets,
    extend,
    no_logprobs,
    prompt_logprobs,
)
from mlx_server.api.logprobs import finite_logprob, groups
from mlx_server.api.sink import SYSTEM_FINGERPRINT, EventSink, finish_reason_on_wire
from mlx_server.api.sse import ChunkSink, StreamUsage, pieces
from mlx_server.api.wire_json import to_json
from mlx_server.engine.sequence import (
    Delta,
    GenerationRequest,
    PromptLogprobs,
    Started,
    TokenLogprob,
)
from mlx_server.models import Completion, CompletionLogprobs


class GrowingText:
    """What one choice has so far."""

    def __init__(self, started: Started) -> None:
        self.prompt_text = started.prompt_text or ""
        self.prompt_logprobs = started.prompt_logprobs
        self.text: list[str] = []
        self.tokens: list[TokenLogprob] = []
        self.finish_reason = ""

    @property
    def mean_logprob(self) -> float:
        """Of its tokens; a text without any is the worst there is."""
        if not self.tokens:
            return -math.inf
        return sum(map(finite_logprob, self.tokens)) / len(self.tokens)


class CompletionAnswer(EventSink):
    """Collects the one JSON object of an answer that is not streamed.

    Of the choices of each prompt it gives the `num_best` likeliest, if that is fewer than all.
    """

    def __init__(
        self,
        answer_id: str,
        requests: Sequence[GenerationRequest],
        *,
        num_best: int,
        has_logprobs: bool,
    ) -> None:
        super().__init__(answer_id, requests)
        self._num_best = num_best
        self._has_logprobs = has_logprobs
        self._choices: dict[int, GrowingText] = {}
        self._of_prompts: dict[int, CompletionLogprobs] = {}

    def opened(self, index: int, started: Started) -> None:
        self._choices[index] = GrowingText(started)

    def wrote(self, index: int, delta: Delta) -> None:
        choice = self._choices[index]
        choice.text.append(delta.text)
        choice.tokens += delta.logprobs
        if delta.finish_reason is not None:
            choice.finish_reason = finish_reason_on_wire(delta.finish_reason)

    def body(self) -> Completion:
        return {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": [
                {
                    "index": index,
                    "text": choice.prompt_text + "".join(choice.text),
                    "logprobs": self._logprobs(choice) if self._has_logprobs else None,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in enumerate(self._best())
            ],
            "usage": self.usage(),
        }

    def _best(self) -> Iterator[GrowingText]:
        choices = [choice for _, choice in sorted(self._choices.items())]
        for first in range(0, len(choices), self._n):
            of_prompt = choices[first : first + self._n]
            if self._num_best < self._n:
                of_prompt.sort(key=lambda choice: -choice.mean_logprob)
            yield from of_prompt[: self._num_best]

    def _logprobs(self, choice: GrowingText) -> CompletionLogprobs:
        logprobs = no_logprobs()
        if choice.prompt_logprobs is not None:
            extend(logprobs, self._of_prompt(choice.prompt_logprobs, choice.prompt_text))
        offsets = TokenOffsets(len(choice.prompt_text))
        extend(logprobs, offsets.logprobs(choice.tokens))
        return logprobs

    def _of_prompt(self, prompt: PromptLogprobs, text: str) -> CompletionLogprobs:
        """The same object for all choices that begin with this prompt."""
        if id(prompt) not in self._of_prompts:
            logprobs = self._of_prompts[id(prompt)] = no_logprobs()
            for group in prompt_logprobs(prompt, text):
                extend(logprobs, group)
        return self._of_prompts[id(prompt)]


class CompletionFrames(ChunkSink):
    """Writes chunks as the text comes; an echoed prompt comes first."""

    object = "text_completion"

    def __init__(
        self, answer_id: str, requests: Sequence[GenerationRequest], usage: StreamUsage
    ) -> None:
        super().__init__(answer_id, requests, usage)
        self._offsets: dict[int, TokenOffsets] = {}

    def opened(self, index: int, started: Started) -> None:
        text = started.prompt_text or ""
        logprobs = prompt_logprobs(started.prompt_logprobs, text)
        self._offsets[index] = TokenOffsets(len(text))
        for piece, group in zip_longest(pieces(text), logprobs):
            self.chunk(choice_json(index, piece or "", group))

    def wrote(self, index: int, delta: Delta) -> None:
        logprobs = map(self._offsets[index].logprobs, groups(delta.logprobs))
        for piece, group in zip_longest(pieces(delta.text), logprobs):
            self.chunk(choice_json(index, piece or "", group))
        if delta.finish_reason is not None:
            reason = finish_reason_on_wire(delta.finish_reason)
            self.chunk(choice_json(index, "", finish_reason=reason))

    def failed_choice(self) -> str:
        return choice_json(0, "", finish_reason="error")


def choice_json(
    index: int,
    text: str,
    logprobs: CompletionLogprobs | None = None,
    finish_reason: str | None = None,
) -> str:
    return to_json(
        {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
    )
