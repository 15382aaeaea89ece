"""Token ids -> text, as they come; half characters wait for their other half."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
CONTEXT_TOKENS = 4
MAX_CHARACTER_TOKENS = 4
# Half a character makes fewer of them, also where the bytes before it are given up with it.
MAX_REPLACEMENTS = 16


class _Backend(Protocol):
    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str: ...


class Detokenizer:
    """Text of one sequence. Special tokens have no text, unless there are `hidden_ids`: then all
    others have. Bytes that never become a character are dropped.

    The prompt's last tokens are the context in which the first new token is decoded, since many
    tokenizers write a leading space only after other text.
    """

    def __init__(
        self, tokenizer: Any, prompt_ids: Sequence[int], hidden_ids: Container[int] | None = None
    ) -> None:
        self._hidden_ids = hidden_ids
        self._backend: _Backend = tokenizer.backend_tokenizer
        self._window = self._context(prompt_ids)
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes; empty while it ends inside a character."""
        self._window.append(token_id)
        text = self._decode(self._window)
        whole = text.rstrip(REPLACEMENT)
        if 0 < len(text) - len(whole) <= MAX_REPLACEMENTS:
            return self._show(whole)
        return self._advance(text) if text != self._shown else ""

    def finish(self) -> str:
        """What is whole of the text still held back."""
        return self._advance(self._decode(self._window).rstrip(REPLACEMENT))

    def _context(self, prompt_ids: Sequence[int]) -> list[int]:
        """The last tokens of the prompt, from where a character begins: some decoders give up all
        bytes of a run that begins inside of one.
        """
        for size in range(CONTEXT_TOKENS, CONTEXT_TOKENS + MAX_CHARACTER_TOKENS):
            context = list(prompt_ids[-size:])
            if not self._decode(context).startswith(REPLACEMENT):
                break
        return context

    def _show(self, text: str) -> str:
        """What is new in the text; all tokens stay in the window."""
        if not text.startswith(self._shown):
            return ""
        new, self._shown = text[len(self._shown) :], text
        return new

    def _advance(self, text: str) -> str:
        # a prompt can end inside a character, and what stood for its first half is then replaced
        is_longer = text.startswith(self._shown)
        new = text[len(self._shown if is_longer else self._shown.rstrip(REPLACEMENT)) :]
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown = self._decode(self._window)
        return new

    def _decode(self, ids: list[int]) -> str:
        if self._hidden_ids is None:
            return self._backend.decode(ids, skip_special_tokens=True)
        shown = [token_id for token_id in ids if token_id not in self._hidden_ids]
        return self._backend.decode(shown, skip_special_tokens=False)
