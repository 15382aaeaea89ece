"""The sampler of a batch: the next token of every row, in one call on the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import mlx.core as mx

from mlx_server.engine.draws import sample
from mlx_server.engine.logprobs import PendingLogprobs, TopLogprobs
from mlx_server.engine.sampler_row import SamplerRow


@dataclass(frozen=True, slots=True)
class RowToken:
    """One token of the row `uid`; `is_broken` if the logits it was drawn from are no numbers."""

    uid: int
    token_id: int
    logprobs: TopLogprobs | None
    is_broken: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One token of every row, which may still be on its way: arrays until somebody reads them."""

    token_ids: mx.array
    is_broken: mx.array
    logprobs: PendingLogprobs | None

    def read(self, uids: list[int]) -> list[RowToken]:
        """Wait for the tokens of the rows `uids`."""
        token_ids = cast(list[int], self.token_ids.tolist())
        is_broken = cast(list[bool], self.is_broken.tolist())
        logprobs = self.logprobs.read() if self.logprobs else [None] * len(uids)
        return [RowToken(*row) for row in zip(uids, token_ids, logprobs, is_broken, strict=True)]

    def join(self, other: Drawn, num_rows: int, num_others: int) -> Drawn:
        return Drawn(
            mx.concatenate([self.token_ids, other.token_ids]),
            mx.concatenate([self.is_broken, other.is_broken]),
            PendingLogprobs.join(self.logprobs, num_rows, other.logprobs, num_others),
        )

    def keep(self, indices: list[int]) -> Drawn:
        at = mx.array(indices)
        logprobs = self.logprobs.keep(indices) if self.logprobs else None
        return Drawn(self.token_ids[at], self.is_broken[at], logprobs)


@dataclass(slots=True, eq=False)
class RowSampler:
    """Samples all rows of a batch at once. It is called with the model's logits, shape
    (rows, vocab).
    """

    rows: list[SamplerRow] = field(default_factory=list)
    _newest: Drawn | None = None

    def __call__(self, logits: mx.array) -> mx.array:
        logits = logits.astype(mx.float32)
        scores = self._process(logits)
        tokens = sample(scores, self.rows)
        pending = PendingLogprobs.capture(
            logits, tokens, tuple(row.top_logprobs for row in self.rows)
        )
        self._newest = Drawn(tokens, mx.any(mx.isnan(scores), axis=-1), pending)
        # with the tokens, or reading what goes with them would wait for the step after
        mx.async_eval(tokens, self._newest.is_broken, *(pending.arrays if pending else ()))
        for row in self.rows:
            row.position += 1
        return tokens

    def newest(self) -> Drawn:
        """What the last call drew."""
        assert self._newest is not None
        return self._newest

    def extend(self, other: RowSampler) -> None:
        """Append the rows of `other`, whose batch has just been joined to ours."""
        self._newest = self.newest().join(other.newest(), len(self.rows), len(other.rows))
        self.rows.extend(other.rows)

    def keep(self, indices: list[int]) -> None:
        self.rows = [self.rows[i] for i in indices]
        self._newest = self.newest().keep(indices) if indices else None

    def _process(self, logits: mx.array) -> mx.array:
        """Run the processors of the rows that have any; without such a row, nothing."""
        if not any(row.processors for row in self.rows):
            return logits
        scores = []
        for i, row in enumerate(self.rows):
            one = logits[i]
            last = self._newest.token_ids[i] if self._newest is not None and row.position else None
            for processor in row.processors:
                one = processor(one, last)
            scores.append(one)
        return mx.stack(scores)
