"""How the tokens of one sequence are drawn.

The random stream of a row is a function of its seed and the position of the token alone: the same
seed gives the same text whatever shares the batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx
import numpy as np

from mlx_server.engine.logits_processors import LogitBias, LogitsProcessor, Penalties
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
    constraints: Iterable[LogitsProcessor] = (),
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
        processors=(*processors, *constraints),
    )


def _first(value: T | None, default: T) -> T:
    return default if value is None else value


def random_keys(rows: list[SamplerRow]) -> mx.array:
    """A PRNG key for the next token of every row, shape (rows, 2)."""
    return mx.array(np.array([_key(row.seed, row.position) for row in rows], dtype=np.uint32))


def _key(seed: int, position: int) -> tuple[int, int]:
    """A PRNG key from both numbers (the finaliser of splitmix64), the same on every machine."""
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & UINT64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & UINT64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & UINT64
    z ^= z >> 31
    return z >> 32, z & 0xFFFFFFFF
