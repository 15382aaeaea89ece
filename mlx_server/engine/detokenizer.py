"""Token ids -> text, as they come; half characters wait for their other half."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 4


class _Backend(Protocol):
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...


class Detokenizer:
    """Text of one sequence. Special tokens have no text; bytes that never become a character are
    dropped.

    The prompt's last tokens are the context in which the first new token is decoded, since many
    tokenizers write a leading space only after other text.
    """

    def __init__(self, tokenizer: Any, prompt_ids: Sequence[int]) -> None:
        self._backend: _Backend = tokenizer.backend_tokenizer
        self._window = list(prompt_ids[-CONTEXT_TOKENS:])
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while it ends inside a character."""
        self._window.append(token_id)
        text = self._decode(self._window)
        if len(text) <= len(self._shown) or text.endswith(REPLACEMENT):
            return ""
        return self._advance(text)

    def finish(self) -> str:
        """What is whole of the text still held back."""
        return self._advance(self._decode(self._window).rstrip(REPLACEMENT))

    def _advance(self, text: str) -> str:
        new = text[len(self._shown) :]
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)
        return new

    def _decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=True)
