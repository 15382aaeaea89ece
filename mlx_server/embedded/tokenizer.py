"""The tokenizer and its configuration out of a GGUF file with a GPT-2 vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """SmolLM2's splits every number into its digits before the usual byte-level pieces."""
    tokens = metadata["tokenizer.ggml.tokens"]
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    def token(role: str) -> str:
        index = metadata[f"tokenizer.ggml.{role}_token_id"]
        return str(metadata["tokenizer.ggml.tokens"][index])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos"),
        "eos_token": token("eos"),
        "unk_token": token("unknown"),
        "pad_token": token("padding"),
        "chat_template": metadata["tokenizer.chat_template"],
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
