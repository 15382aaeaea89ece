"""A byte-level tokenizer with a family's special tokens: every byte is one token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def write_json(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value, indent=1), encoding="utf-8")


def write_tokenizer(folder: Path, special: Sequence[str], config: dict[str, Any]) -> int:
    """Write the tokenizer files; the special tokens get the first ids.

    Returns the vocabulary's size.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*special, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(
        folder,
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": 4096,
            **config,
        },
    )
    return len(vocab)
