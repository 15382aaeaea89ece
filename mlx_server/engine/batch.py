"""The rows that decode together: mlx_vlm's GenerationBatch with sampling per row and the KV cache
handed back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
from mlx_vlm.generate.ar import GenerationBatch, PromptProcessingBatch

from mlx_server.engine.kv_caches import KVCaches, extract
from mlx_server.engine.logprobs import TopLogprobs
from mlx_server.engine.sampling import RowSampler, SamplerRow


@dataclass(frozen=True, slots=True)
class RowToken:
    """One decoded token of the row `uid`."""

    uid: int
    token_id: int
    logprobs: TopLogprobs | None


class _LogitsTap:
    """The language model, which keeps the logits of its last call until the sampler takes them.

    What mlx_vlm hands to a sampler is their log-softmax in the model's own precision: too coarse
    for log-probabilities, and penalties that scale need the logits' own zero.
    """

    def __init__(self, language_model: Any) -> None:
        self._language_model = language_model
        self._logits: mx.array | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._language_model(*args, **kwargs)
        self._logits = getattr(output, "logits", output)[:, -1, :]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._language_model, name)

    def take(self) -> mx.array:
        """The logits of every row at its newest place."""
        logits, self._logits = self._logits, None
        assert logits is not None
        return logits


class RowBatch:
    """Running sequences by `uid`. A row's cache holds its prompt and every token that `decode` has
    returned for it.

    mlx_vlm decides nothing here about when a row ends: rows leave by `release`.
    """

    def __init__(self, language_model: Any) -> None:
        self._tap = _LogitsTap(language_model)
        self._sampler = RowSampler()
        self._batch = self._empty()

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def uids(self) -> list[int]:
        return list(self._batch.uids)

    def join(self, uid: int, prompt: PromptProcessingBatch, row: SamplerRow) -> None:
        """Run the last prompt token of `uid`, sample its first token and take it among the rows."""
        sampler = RowSampler([row])
        prompt.model = self._tap
        newcomer = prompt.generate(
            lambda _: sampler(self._tap.take()), _never_stop, compute_logprobs=False
        )
        if len(self._batch) == 0:
            self._sampler = sampler
            self._batch = newcomer
        else:
            self._sampler.extend(sampler)
            self._batch.extend(newcomer)
        self._batch.sampler = self._sample

    def decode(self) -> list[RowToken]:
        """One token for every row.

        The next step is already under way on the device when this returns. Raises
        FloatingPointError if the model's logits are no numbers.
        """
        pending, broken = self._sampler.pending, self._sampler.broken
        responses = self._batch.next()
        if broken is not None and any(cast(list[bool], broken.tolist())):
            raise FloatingPointError("the model's logits are no numbers")
        logprobs = pending.read() if pending else [None] * len(responses)
        return [
            RowToken(response.uid, response.token, row_logprobs)
            for response, row_logprobs in zip(responses, logprobs, strict=True)
        ]

    def release(self, uid: int) -> KVCaches:
        """Take the row out of the batch and give its caches to the caller."""
        index = self._batch.uids.index(uid)
        caches = extract(self._batch.prompt_cache, index)
        keep = [i for i in range(len(self._batch)) if i != index]
        self._batch.filter(keep)
        self._sampler.keep(keep)
        if not keep:
            self._batch = self._empty()
        return caches

    def _sample(self, _: mx.array) -> mx.array:
        return self._sampler(self._tap.take())

    def _empty(self) -> GenerationBatch:
        return GenerationBatch.empty(self._tap, self._sample, _never_stop, compute_logprobs=False)


def _never_stop(token_id: int) -> bool:
    return False
