"""Refuses what is too long for a prompt, before it costs anything."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.errors import ContextLengthExceeded

COUNTED_PIECE = 1 << 16
# Who only wants to count may exceed a small context: no more than a large one lets pass.
MAX_COUNTED_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class PromptBound:
    """At most `max_tokens`; `param` is named to who sends more. All raise
    ContextLengthExceeded.
    """

    loaded: LoadedModel
    max_tokens: int
    param: str

    @classmethod
    def of_answer(cls, loaded: LoadedModel, param: str) -> PromptBound:
        """A prompt that leaves room for one token of an answer."""
        return cls(loaded, loaded.context_length - 1, param)

    @classmethod
    def of_count(cls, loaded: LoadedModel, param: str) -> PromptBound:
        """A prompt that is only counted."""
        return cls(loaded, max(loaded.context_length, MAX_COUNTED_TOKENS), param)

    def check(self, num_tokens: int) -> None:
        if num_tokens > self.max_tokens:
            raise self._exceeded(num_tokens)

    def check_length(self, num_chars: int) -> None:
        """Refuse by length alone what would not fit even if every token were the longest there
        is.
        """
        at_least = num_chars // self.loaded.token_text.longest
        if at_least > self.max_tokens + 1:
            raise self._exceeded(at_least, exact=False)

    def check_by_counting(self, text: str) -> None:
        """Count piece by piece and stop at the limit: tokenising 50 MB takes minutes and
        gigabytes.
        """
        limit = self.max_tokens + 1
        if len(text) <= max(limit, COUNTED_PIECE):
            return
        encode = self.loaded.tokenizer.backend_tokenizer.encode
        num_tokens = 0
        for start in range(0, len(text), COUNTED_PIECE):
            num_tokens += len(encode(text[start : start + COUNTED_PIECE]).ids)
            # a cut can split a token in two, so each piece may count a few too many
            at_least = num_tokens - 4 * (start // COUNTED_PIECE + 1)
            if at_least > limit:
                raise self._exceeded(at_least, exact=False)

    def _exceeded(self, num_tokens: int, *, exact: bool = True) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            num_tokens, self.loaded.context_length, exact=exact, param=self.param
        )
