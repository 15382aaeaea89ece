"""Ends a row's reasoning after so many tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx

MAX_MARK = 64


class ThinkingBudget:
    """Writes `end_ids` once `max_tokens` of reasoning have come, which begins with the row if
    `is_reasoning`, and otherwise when one of `starts` has been written.
    """

    def __init__(
        self,
        max_tokens: int,
        *,
        starts: Sequence[str],
        ends: Sequence[str],
        end_ids: Sequence[int],
        is_reasoning: bool,
        token_bytes: Callable[[int], bytes],
    ) -> None:
        self._left = max_tokens
        self._starts = [mark.encode() for mark in starts]
        self._ends = [mark.encode() for mark in ends]
        self._end_ids = list(end_ids)
        self._is_reasoning = is_reasoning
        self._token_bytes = token_bytes
        self._tail = b""
        self._num_forced = 0

    def __call__(self, logits: mx.array, last_token: mx.array | None) -> mx.array:
        if last_token is not None and not self._is_over:
            self._note(self._token_bytes(cast(int, last_token.item())))
        if self._is_over or not self._is_reasoning or self._left > 0:
            return logits
        forced = self._end_ids[self._num_forced]
        self._num_forced += 1
        return mx.where(mx.arange(logits.shape[0]) == forced, 0.0, -mx.inf)

    @property
    def _is_over(self) -> bool:
        return self._num_forced == len(self._end_ids)

    def _note(self, text: bytes) -> None:
        self._tail = (self._tail + text)[-MAX_MARK:]
        if self._is_reasoning:
            self._left -= 1
            if any(mark in self._tail for mark in self._ends):
                self._num_forced = len(self._end_ids)
        elif any(mark in self._tail for mark in self._starts):
            self._is_reasoning, self._tail = True, b""
