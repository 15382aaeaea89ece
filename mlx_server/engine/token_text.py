"""What single token ids stand for: their bytes for logprobs, and the longest of them."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
SPACE_MARK = "\u2581"


class TokenText:
    """The vocabulary of one tokenizer, read through its fast backend."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._is_byte_level = "ByteLevel" in repr(self._backend.decoder)
        self._hidden: dict[tuple[str, ...], frozenset[int]] = {}

    @cached_property
    def vocab_size(self) -> int:
        return int(self._backend.get_vocab_size())

    @cached_property
    def longest(self) -> int:
        """Characters of the longest token: text of n characters has at least n / longest tokens."""
        return max(map(len, self._backend.get_vocab()))

    def hidden_ids(self, marks: tuple[str, ...]) -> frozenset[int]:
        """The special tokens but those of which the marks are made."""
        if marks not in self._hidden:
            added = self._backend.get_added_tokens_decoder()
            self._hidden[marks] = frozenset(
                token_id
                for token_id, token in added.items()
                if token.special and not any(token.content in mark for mark in marks)
            )
        return self._hidden[marks]

    def token_bytes(self, token_id: int) -> bytes:
        piece: str | None = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if self._is_byte_level and all(c in BYTE_OF for c in piece):
            return bytes(BYTE_OF[c] for c in piece)
        if byte := BYTE_TOKEN.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace(SPACE_MARK, " ").encode()


def _byte_of() -> dict[str, int]:
    """The printable stand-ins that byte-level vocabularies use, as GPT-2 laid them down."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF = _byte_of()
