"""Holds the tokens of a row to a grammar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import llguidance.hf
import mlx.core as mx
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from mlx_server.errors import InvalidRequest

Mask = npt.NDArray[np.bool_]


class GrammarVocabulary:
    """llguidance's view of a tokenizer, made when it is first needed: that takes a second."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of the texts that are one token each, whatever stands around them."""
        return {str(token): i for i, token in self._tokenizer.added_tokens_decoder.items()}

    def matcher(self, lark: str) -> LLMatcher:
        """Raises InvalidRequest for a grammar that is too big, which is all that can still be wrong
        with it.
        """
        matcher = LLMatcher(self._view, LLMatcher.grammar_from_lark(lark))
        if matcher.is_error():
            raise InvalidRequest(
                "What the answer shall be is too complicated a grammar. Ask for something simpler."
            )
        return matcher

    @cached_property
    def _view(self) -> LLTokenizer:
        return llguidance.hf.from_tokenizer(self._tokenizer)


class GrammarProcessor:
    """Forbids what the grammar does not allow; `matcher` is used up.

    The end of the answer is any of `stop_token_ids`. A row that leaves its grammar all the same
    gets logits that are no numbers, which ends it as broken.
    """

    def __init__(self, matcher: LLMatcher, stop_token_ids: Iterable[int]) -> None:
        self._matcher = matcher
        self._stop_token_ids = sorted(stop_token_ids)

    def __call__(self, logits: mx.array, last_token: mx.array | None) -> mx.array:
        if last_token is not None and not self._follow(cast(int, last_token.item())):
            return mx.full(logits.shape, mx.nan, dtype=logits.dtype)
        return mx.where(mx.array(self._mask(logits.shape[0])), logits, -mx.inf)

    def _follow(self, token_id: int) -> bool:
        if token_id in self._stop_token_ids:
            return True  # the row has ended, and its next token is nobody's
        return bool(self._matcher.consume_token(token_id))

    def _mask(self, num_logits: int) -> Mask:
        """Which tokens may come next; logits past the tokenizer's last token are padding."""
        allowed = np.zeros(num_logits, dtype=np.bool_)
        if not self._matcher.is_stopped():
            bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
            known = np.unpackbits(bits, bitorder="little")[:num_logits]
            allowed[: len(known)] = known
        if self._matcher.is_accepting():
            allowed[[i for i in self._stop_token_ids if i < num_logits]] = True
        return allowed
