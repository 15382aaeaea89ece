"""Shapes events into a text completion, whole or as chunks: the model's text as it is."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import zip_longest

from mlx_server.api.logprobs import finite_logprob, groups
from mlx_server.api.sink import SYSTEM_FINGERPRINT, EventSink, finish_reason_on_wire
from mlx_server.api.sse import ChunkSink, StreamUsage, pieces
from mlx_server.api.wire_json import to_json
from mlx_server.engine.sequence import Delta, GenerationRequest, Started, TokenLogprob
from mlx_server.models import Completion, CompletionLogprobs


class TokenOffsets:
    """Where in a choice's text its tokens begin; parts of one character share its place."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def logprobs(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Must be given every token of the choice, in order."""
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [finite_logprob(entry) for entry in entries],
            "top_logprobs": [top_logprobs(entry) for entry in entries],
            "text_offset": [self._offset(entry) for entry in entries],
        }

    def _offset(self, entry: TokenLogprob) -> int:
        offset = self._num_chars
        self._num_chars += len(self._decoder.decode(entry.token_bytes))
        return offset


def top_logprobs(entry: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and always the chosen one, which may be one more than was asked for."""
    top = {other.token: finite_logprob(other) for other in entry.top}
    top.setdefault(entry.token, finite_logprob(entry))
    return top


class GrowingText:
    """What one choice has so far."""

    def __init__(self, prompt_text: str) -> None:
        self.text = [prompt_text]
        self.tokens: list[TokenLogprob] = []
        self.finish_reason = ""


class CompletionAnswer(EventSink):
    """Collects the one JSON object of an answer that is not streamed."""

    def __init__(self, answer_id: str, requests: Sequence[GenerationRequest]) -> None:
        super().__init__(answer_id, requests)
        self._has_logprobs = requests[0].top_logprobs is not None
        self._choices: dict[int, GrowingText] = {}

    def opened(self, index: int, started: Started) -> None:
        self._choices[index] = GrowingText(started.prompt_text or "")

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
                    "text": "".join(choice.text),
                    "logprobs": TokenOffsets().logprobs(choice.tokens)
                    if self._has_logprobs
                    else None,
                    "finish_reason": choice.finish_reason,
                }
                for index, choice in sorted(self._choices.items())
            ],
            "usage": self.usage(),
        }


class CompletionFrames(ChunkSink):
    """Writes chunks as the text comes; an echoed prompt comes first."""

    object = "text_completion"

    def __init__(
        self, answer_id: str, requests: Sequence[GenerationRequest], usage: StreamUsage
    ) -> None:
        super().__init__(answer_id, requests, usage)
        self._offsets: dict[int, TokenOffsets] = {}

    def opened(self, index: int, started: Started) -> None:
        self._offsets[index] = TokenOffsets()
        for piece in pieces(started.prompt_text or ""):
            self.chunk(choice_json(index, piece))

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
