"""What changes the logits of one row before a token is drawn from them."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mlx_server.engine.sequence import SamplingParams

LogitsProcessor = Callable[[mx.array, mx.array | None], mx.array]
"""(logits of shape (vocab,), the row's newest token or None) -> logits.

Called once a step, so it may keep state.
"""


class Penalties:
    """Repetition penalty over prompt and completion; presence and frequency over the completion, as
    OpenAI defines.
    """

    def __init__(
        self, params: SamplingParams, repetition: float, prompt_ids: list[int], vocab_size: int
    ) -> None:
        self.presence = params.presence_penalty
        self.frequency = params.frequency_penalty
        self.repetition = repetition
        seen = np.zeros(vocab_size, dtype=bool)
        seen[[i for i in prompt_ids if 0 <= i < vocab_size]] = True
        self._in_prompt = mx.array(seen)
        self._counts = mx.zeros(vocab_size, dtype=mx.float32)

    def __call__(self, logits: mx.array, last_token: mx.array | None) -> mx.array:
        if last_token is not None:
            self._counts = self._counts.at[last_token].add(1.0)
        generated = self._counts > 0
        if self.repetition != 1.0:
            penalised = mx.where(logits > 0, logits / self.repetition, logits * self.repetition)
            logits = mx.where(self._in_prompt | generated, penalised, logits)
        return logits - self.presence * generated - self.frequency * self._counts


class LogitBias:
    """Adds the client's bias to the logits of the tokens it names."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        known = {i: b for i, b in params.logit_bias.items() if 0 <= i < vocab_size}
        bias = np.zeros(vocab_size, dtype=np.float32)
        bias[list(known)] = list(known.values())
        self._bias = mx.array(bias)

    def __call__(self, logits: mx.array, last_token: mx.array | None) -> mx.array:
        return logits + self._bias
