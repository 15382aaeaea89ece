"""Prompts of a wanted number of tokens that no two runs share, the same whenever they are made."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

TEXT = (
    "the of and a to in is was he for it with as his on be at by had not are but from or have an "
    "they which one you were her all she there would their we him been has when who will more no "
    "if out so said what up its about into than them can only other new some could time these two "
    "may then do first any my now such like our over man me even most made after also did many "
    "before must through back years where much your way well down should because each just those "
    "people how too little state good very make world still own see men work long get here between "
    "river stone window garden winter market engine letter number colour island signal copper"
)
WORDS = TEXT.split()


class Writer:
    def __init__(self, checkpoint: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))

    def text(self, num_tokens: int, name: str) -> str:
        """About `num_tokens` of them; texts of different names differ from the first word on."""
        chance = random.Random(name)
        words = [chance.choice(WORDS) for _ in range(num_tokens)]
        sentences = [" ".join(words[i : i + 12]) for i in range(0, num_tokens, 12)]
        ids = self._tokenizer.encode(f"{name}. {'. '.join(sentences)}").ids
        return str(self._tokenizer.decode(ids[:num_tokens]))

    def token_ids(self, num_tokens: int, name: str) -> list[int]:
        return list(self._tokenizer.encode(self.text(num_tokens, name)).ids)
