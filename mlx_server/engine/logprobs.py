"""The log-probabilities a row asked for, kept on the device until its token is returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from mlx_server.engine.sequence import TokenLogprob
from mlx_server.engine.token_text import TokenText


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Log-probabilities of one sampled token and of the likeliest at its place, best first."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PendingLogprobs:
    """What was asked about tokens that are still on their way: arrays until somebody reads them."""

    chosen: mx.array
    top_ids: mx.array
    top_logprobs: mx.array
    wanted: tuple[int | None, ...]

    @classmethod
    def capture(
        cls, logits: mx.array, tokens: mx.array, wanted: tuple[int | None, ...]
    ) -> PendingLogprobs | None:
        if all(k is None for k in wanted):
            return None
        logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        depth = max(max(k or 0 for k in wanted), 1)
        ids = mx.argpartition(-logprobs, kth=depth - 1, axis=-1)[:, :depth]
        return cls(
            chosen=mx.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0],
            top_ids=ids,
            top_logprobs=mx.take_along_axis(logprobs, ids, axis=-1),
            wanted=wanted,
        )

    @classmethod
    def join(
        cls,
        left: PendingLogprobs | None,
        num_left: int,
        right: PendingLogprobs | None,
        num_right: int,
    ) -> PendingLogprobs | None:
        if left is None and right is None:
            return None
        left = left or cls._blank(num_left)
        right = right or cls._blank(num_right)
        depth = max(left.top_ids.shape[1], right.top_ids.shape[1])
        sides = (left._padded(depth), right._padded(depth))
        return cls(
            chosen=mx.concatenate([s.chosen for s in sides]),
            top_ids=mx.concatenate([s.top_ids for s in sides]),
            top_logprobs=mx.concatenate([s.top_logprobs for s in sides]),
            wanted=left.wanted + right.wanted,
        )

    @classmethod
    def _blank(cls, num_rows: int) -> PendingLogprobs:
        return cls(
            chosen=mx.zeros(num_rows),
            top_ids=mx.zeros((num_rows, 1), dtype=mx.uint32),
            top_logprobs=mx.full((num_rows, 1), -mx.inf),
            wanted=(None,) * num_rows,
        )

    def _padded(self, depth: int) -> PendingLogprobs:
        missing = depth - self.top_ids.shape[1]
        if missing == 0:
            return self
        return PendingLogprobs(
            chosen=self.chosen,
            top_ids=mx.pad(self.top_ids, [(0, 0), (0, missing)]),
            top_logprobs=mx.pad(self.top_logprobs, [(0, 0), (0, missing)], constant_values=-mx.inf),
            wanted=self.wanted,
        )

    def keep(self, indices: list[int]) -> PendingLogprobs:
        at = mx.array(indices)
        return PendingLogprobs(
            chosen=self.chosen[at],
            top_ids=self.top_ids[at],
            top_logprobs=self.top_logprobs[at],
            wanted=tuple(self.wanted[i] for i in indices),
        )

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        return self.chosen, self.top_ids, self.top_logprobs

    def read(self) -> list[TopLogprobs | None]:
        """Wait for the arrays and give each row that asked its numbers."""
        chosen = cast(list[float], self.chosen.tolist())
        ids = cast(list[list[int]], self.top_ids.tolist())
        values = cast(list[list[float]], self.top_logprobs.tolist())
        rows: list[TopLogprobs | None] = []
        for i, k in enumerate(self.wanted):
            if k is None:
                rows.append(None)
                continue
            ranked = sorted(zip(ids[i], values[i], strict=True), key=lambda pair: -pair[1])
            # rounding can make them a little more than certain
            top = tuple((token_id, min(value, 0.0)) for token_id, value in ranked[:k])
            rows.append(TopLogprobs(chosen=min(chosen[i], 0.0), top=top))
        return rows


def token_logprob(text: TokenText, token_id: int, logprobs: TopLogprobs) -> TokenLogprob:
    """The numbers of one token, with the texts of it and of the likeliest."""
    top = tuple(_entry(text, other, value) for other, value in logprobs.top)
    return _entry(text, token_id, logprobs.chosen, top)


def _entry(
    text: TokenText, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
) -> TokenLogprob:
    token_bytes = text.token_bytes(token_id)
    return TokenLogprob(token_bytes.decode(errors="replace"), token_bytes, logprob, top)
