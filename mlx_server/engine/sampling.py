"""The sampler of a batch: the next token of every row, in one call on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from mlx_server.engine.draws import sample
from mlx_server.engine.logprobs import PendingLogprobs
from mlx_server.engine.sampler_row import SamplerRow


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
