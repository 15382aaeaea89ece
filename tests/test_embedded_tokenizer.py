"""The tokenizer that is rebuilt from a GGUF file's vocabulary."""

from __future__ import annotations

import pytest

from mlx_server.embedded.tokenizer import build_tokenizer, tokenizer_config
from tests.small_gguf import TEMPLATE, metadata


@pytest.mark.parametrize(
    "text",
    ["the cat", " \n\t ", "naïve 日本語 🙂", "x<|im_end|>y", "a\x00b", ""],
    ids=["words", "blanks", "unicode", "control token", "zero byte", "empty"],
)
def test_text_comes_back_as_it_was(text: str) -> None:
    tokenizer = build_tokenizer(metadata())
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_merges_are_applied() -> None:
    assert build_tokenizer(metadata()).encode("he the").tokens == ["he", "Ġthe"]


def test_digits_stay_apart_even_where_a_merge_would_join_them() -> None:
    assert build_tokenizer(metadata()).encode("312").tokens == ["3", "1", "2"]


def test_control_tokens_are_one_token_each_and_are_left_out_of_text() -> None:
    tokenizer = build_tokenizer(metadata())
    ids = tokenizer.encode("<|im_start|>he<|im_end|>").ids
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "he"


def test_roles_of_tokens_and_the_template_are_taken_over() -> None:
    config = tokenizer_config(metadata())
    roles = {role: config[f"{role}_token"] for role in ("bos", "eos", "pad", "unk")}
    assert roles == {
        "bos": "<|im_start|>",
        "eos": "<|im_end|>",
        "pad": "<|im_end|>",
        "unk": "<|endoftext|>",
    }
    assert config["chat_template"] == TEMPLATE
    assert config["model_max_length"] == 128
