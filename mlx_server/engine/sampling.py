"""SamplingParams -> the next token of every row, in one call on the device.

Each row has its own parameters and its own random stream, a function of its seed and the position
of the token alone: the same seed gives the same text whatever shares the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import mlx.core as mx
import numpy as np

from mlx_server.engine.logits_processors import LogitBias, LogitsProcessor, Penalties
from mlx_server.engine.logprobs import PendingLogprobs
from mlx_server.engine.sequence import SamplingParams

T = TypeVar("T")
UINT64 = 0xFFFFFFFFFFFFFFFF
# Colder than this, logits divided by the temperature may pass the range of single precision.
MIN_TEMPERATURE = 1e-6


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request that says nothing gets: the checkpoint's generation_config, else OpenAI's
    values.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(slots=True, eq=False)
class SamplerRow:
    """The sampling state of one running sequence; `position` counts the tokens it has drawn."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    top_logprobs: int | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    position: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < MIN_TEMPERATURE or self.top_p == 0.0 or self.top_k == 1


def make_row(
    params: SamplingParams,
    defaults: SamplingDefaults,
    *,
    seed: int,
    prompt_ids: list[int],
    vocab_size: int,
    top_logprobs: int | None,
) -> SamplerRow:
    """The row of one sequence; `vocab_size` is the width of the model's logits."""
    repetition = _first(params.repetition_penalty, defaults.repetition_penalty)
    processors: list[LogitsProcessor] = []
    if repetition != 1.0 or params.presence_penalty or params.frequency_penalty:
        processors.append(Penalties(params, repetition, prompt_ids, vocab_size))
    if params.logit_bias:
        processors.append(LogitBias(params, vocab_size))
    return SamplerRow(
        temperature=_first(params.temperature, defaults.temperature),
        top_p=_first(params.top_p, defaults.top_p),
        top_k=min(_first(params.top_k, defaults.top_k), vocab_size),
        min_p=_first(params.min_p, defaults.min_p),
        seed=seed & UINT64,
        top_logprobs=top_logprobs,
        processors=tuple(processors),
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


@dataclass(slots=True, eq=False)
class RowSampler:
    """Samples all rows of a batch at once. It is called with the model's logits, shape
    (rows, vocab).

    `pending` describes the tokens of the last call, row by row, and `broken` says which of them
    were drawn from logits that are no numbers; the batch returns the tokens one step later.
    """

    rows: list[SamplerRow] = field(default_factory=list)
    pending: PendingLogprobs | None = None
    broken: mx.array | None = None
    _last_tokens: mx.array | None = None

    def __call__(self, logits: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        tokens = sample(self._process(logits), self.rows)
        self.pending = PendingLogprobs.capture(
            logits, tokens, tuple(row.top_logprobs for row in self.rows)
        )
        self.broken = mx.any(mx.isnan(logits), axis=-1)
        self._last_tokens = tokens
        # with the tokens, or reading what goes with them would wait for the step after
        mx.async_eval(tokens, self.broken, *(self.pending.arrays if self.pending else ()))
        for row in self.rows:
            row.position += 1
        return tokens

    def extend(self, other: RowSampler) -> None:
        """Append the rows of `other`, whose batch has just been joined to ours."""
        self.pending = PendingLogprobs.join(
            self.pending, len(self.rows), other.pending, len(other.rows)
        )
        self.rows.extend(other.rows)
        self._last_tokens = _joined(self._last_tokens, other._last_tokens)
        self.broken = _joined(self.broken, other.broken)

    def keep(self, indices: list[int]) -> None:
        self.rows = [self.rows[i] for i in indices]
        if not indices:
            self.pending, self.broken, self._last_tokens = None, None, None
            return
        if self.pending is not None:
            self.pending = self.pending.keep(indices)
        if self._last_tokens is not None and self.broken is not None:
            self._last_tokens = self._last_tokens[mx.array(indices)]
            self.broken = self.broken[mx.array(indices)]

    def _process(self, logits: mx.array) -> mx.array:
        """Run the processors of the rows that have any; the others stay in the one array."""
        if not any(row.processors for row in self.rows):
            return logits
        scores = []
        for i, row in enumerate(self.rows):
            one = logits[i]
            last = self._last_tokens[i] if self._last_tokens is not None and row.position else None
            for processor in row.processors:
                one = processor(one, last)
            scores.append(one)
        return mx.stack(scores)


def _joined(left: mx.array | None, right: mx.array | None) -> mx.array | None:
    both = [array for array in (left, right) if array is not None]
    return mx.concatenate(both) if both else None


def sample(scores: mx.array, rows: list[SamplerRow]) -> mx.array:
    """Token ids, shape (rows,).

    Temperature comes first, then top_k, top_p and min_p of what is left, as in vLLM.
    """
    greedy = mx.argmax(scores, axis=-1)
    if all(row.is_greedy for row in rows):
        return greedy
    hot = mx.array([not row.is_greedy for row in rows])
    heat = mx.array([[1.0 if row.is_greedy else row.temperature] for row in rows])
    scaled = scores / heat
    noise = _gumbel(rows, scores.shape[-1])
    if any(row.top_k > 0 or row.top_p < 1.0 for row in rows if not row.is_greedy):
        drawn = _draw_sorted(scaled, noise, rows)
    else:
        drawn = mx.argmax(_apply_min_p(scaled, rows) + noise, axis=-1)
    return mx.where(hot, drawn, greedy)


def _draw_sorted(scaled: mx.array, noise: mx.array, rows: list[SamplerRow]) -> mx.array:
    vocab_size = scaled.shape[-1]
    order = mx.argsort(-scaled, axis=-1)
    ranked = mx.take_along_axis(scaled, order, axis=-1)
    top_k = mx.array([[row.top_k if row.top_k > 0 else vocab_size] for row in rows])
    ranked = mx.where(mx.arange(vocab_size) < top_k, ranked, -mx.inf)
    probs = mx.softmax(ranked, axis=-1)
    before = mx.cumsum(probs, axis=-1) - probs
    top_p = mx.array([[row.top_p] for row in rows])
    # the first token always stays, whatever rounding does to the sum before it
    inside = (before < top_p) | (mx.arange(vocab_size) == 0) | (top_p >= 1.0)
    ranked = _apply_min_p(mx.where(inside, ranked, -mx.inf), rows)
    place = mx.argmax(ranked + mx.take_along_axis(noise, order, axis=-1), axis=-1)
    return mx.take_along_axis(order, place[:, None], axis=-1)[:, 0]


def _apply_min_p(scaled: mx.array, rows: list[SamplerRow]) -> mx.array:
    if not any(row.min_p > 0 for row in rows):
        return scaled
    floor = mx.array([[np.log(row.min_p) if row.min_p > 0 else -np.inf] for row in rows])
    return mx.where(scaled >= mx.max(scaled, axis=-1, keepdims=True) + floor, scaled, -mx.inf)


def _gumbel(rows: list[SamplerRow], vocab_size: int) -> mx.array:
    """Noise of shape (rows, vocab): argmax(log p + noise) is a draw from p."""
    keys = mx.array(np.array([_key(row.seed, row.position) for row in rows], dtype=np.uint32))
    draw: Callable[[mx.array], mx.array] = mx.vmap(
        lambda key: mx.random.gumbel(shape=(vocab_size,), key=key)
    )
    return draw(keys)


def _key(seed: int, position: int) -> tuple[int, int]:
    """A PRNG key from both numbers (the finaliser of splitmix64), the same on every machine."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & UINT64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & UINT64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & UINT64
    z ^= z >> 31
    return z >> 32, z & 0xFFFFFFFF
