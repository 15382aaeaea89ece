"""The rows that decode together: mlx_vlm's GenerationBatch with sampling per row and the KV cache
handed back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_vlm.generate.ar import GenerationBatch, PromptProcessingBatch

from mlx_server.engine.kv_caches import KVCaches, extract, fork
from mlx_server.engine.kv_quantisation import as_batch_rows
from mlx_server.engine.sampler_row import SamplerRow
from mlx_server.engine.sampling import RowSampler, RowToken

NO_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class RowStart:
    """A prompt that is through the model: its KV state and the logits, shape (1, vocab), from which
    any number of rows can begin.
    """

    caches: KVCaches
    logits: mx.array
    rope_deltas: mx.array | None

    def fork(self) -> RowStart:
        return RowStart(fork(self.caches), self.logits, self.rope_deltas)


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
    """Running sequences by `uid`.

    mlx_vlm decides nothing here about when a row ends: rows leave by `release`. With `reads_ahead`
    a step is always under way on the device while the tokens of the one before are looked at; on a
    CPU, which has no time beside its steps, that would only hold up every token by a step.
    """

    def __init__(self, language_model: Any, *, reads_ahead: bool = False) -> None:
        self._tap = _LogitsTap(language_model)
        self._reads_ahead = reads_ahead
        self._sampler = RowSampler()
        self._batch = self._empty()
        self._fresh: set[int] = set()

    def __len__(self) -> int:
        return len(self._batch)

    @property
    def uids(self) -> list[int]:
        return list(self._batch.uids)

    def holds_newest(self, uid: int) -> bool:
        """Whether the row's KV state holds the token that has been returned last."""
        return self._reads_ahead and uid not in self._fresh

    def start(self, prompt: PromptProcessingBatch) -> RowStart:
        """Run what is left of the prompt, its last token at least."""
        prompt.model = self._tap
        logits: list[mx.array] = []

        def keep_logits(_: mx.array) -> mx.array:
            logits.append(self._tap.take())
            return mx.zeros(1, dtype=mx.uint32)

        begun = prompt.generate(keep_logits, _never_stop, compute_logprobs=False)
        mx.eval(logits)
        return RowStart(begun.prompt_cache, logits[0], begun._rope_deltas)

    def join(self, uid: int, start: RowStart, row: SamplerRow) -> RowToken:
        """Take `uid` among the rows; returns its first token. `start` is used up."""
        sampler = RowSampler([row])
        newcomer = GenerationBatch(
            self._tap,
            [uid],
            sampler(start.logits),
            as_batch_rows(start.caches),
            self._sample,
            _never_stop,
            [NO_LIMIT],
        )
        newcomer.compute_logprobs = False
        newcomer._rope_deltas = start.rope_deltas
        (first,) = sampler.newest().read([uid])
        self._fresh.add(uid)
        if len(self._batch) == 0:
            self._sampler = sampler
            self._batch = newcomer
        else:
            self._sampler.extend(sampler)
            self._batch.extend(newcomer)
        return first

    def decode(self) -> list[RowToken]:
        """Run a step; returns one more token of every row.

        Ahead of the device, that is the token of the step before: rows that have just joined have
        none but their first, which is known.
        """
        if len(self._batch) == 0:
            return []
        before = self._sampler.newest()
        # `next` besides decides for every row whether it has ended, which is not its to say here
        self._batch._step()
        drawn = before if self._reads_ahead else self._sampler.newest()
        known = self._fresh if self._reads_ahead else ()
        tokens = [token for token in drawn.read(self._batch.uids) if token.uid not in known]
        self._fresh = set()
        return tokens

    def release(self, uids: list[int]) -> list[KVCaches]:
        """Take rows out of the batch and give their caches to the caller, in the same order."""
        if not uids:
            return []
        indices = [self._batch.uids.index(uid) for uid in uids]
        caches = [extract(self._batch.prompt_cache, index) for index in indices]
        keep = [i for i in range(len(self._batch)) if i not in indices]
        self._batch.filter(keep)
        self._sampler.keep(keep)
        self._fresh.difference_update(uids)
        if not keep:
            self._batch = self._empty()
        return caches

    def _sample(self, _: mx.array) -> mx.array:
        return self._sampler(self._tap.take())

    def _empty(self) -> GenerationBatch:
        return GenerationBatch.empty(self._tap, self._sample, _never_stop, compute_logprobs=False)


def _never_stop(token_id: int) -> bool:
    return False
