"""The bytes of single tokens, whatever disguise the vocabulary gives them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlx_server.engine.token_text import BYTE_OF, TokenText
from tests.scripted import make_tokenizer
from tests.test_detokenizer import BYTE_FALLBACK, BYTE_LEVEL, bytes_as_ids, ids_of


def text_of(tokenizer: Tokenizer) -> TokenText:
    return TokenText(SimpleNamespace(backend_tokenizer=tokenizer))


def test_byte_level_stand_ins_are_those_of_the_tokenizers_library() -> None:
    assert sorted(BYTE_OF) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(BYTE_OF.values()) == list(range(256))
    decoder = decoders.ByteLevel()
    for char, byte in BYTE_OF.items():
        if byte < 128:
            assert decoder.decode([char]) == chr(byte)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])
def test_the_bytes_of_all_tokens_make_the_text(tokenizer: Tokenizer) -> None:
    text = "a \u00e9\u6f22\U0001f600\n\t\x00"
    token_text = text_of(tokenizer)
    ids = bytes_as_ids(tokenizer, text.encode())
    assert b"".join(map(token_text.token_bytes, ids)) == text.encode()


def test_half_a_character_is_its_bytes() -> None:
    token_text = text_of(BYTE_LEVEL)
    smile = "\U0001f600".encode()
    for byte, token_id in zip(smile, bytes_as_ids(BYTE_LEVEL, smile), strict=True):
        assert token_text.token_bytes(token_id) == bytes([byte])


def test_the_space_mark_is_a_space() -> None:
    token_text = text_of(BYTE_FALLBACK)
    token_id = ids_of(BYTE_FALLBACK, "\u2581Hello")[0]
    assert token_text.token_bytes(token_id) == b" Hello"
    assert token_text.token_bytes(ids_of(BYTE_FALLBACK, "\u2581\u2581")[0]) == b"  "


def test_special_tokens_are_their_names() -> None:
    assert text_of(BYTE_LEVEL).token_bytes(ids_of(BYTE_LEVEL, "</s>")[0]) == b"</s>"
    scripted = TokenText(make_tokenizer())
    assert scripted.token_bytes(2) == b"<|im_end|>"


def test_added_tokens_have_the_bytes_of_their_text() -> None:
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(BYTE_OF))}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t in ("\u00a9\u00e9", "\u6f22", " x", "two words")]
    )
    token_text = text_of(tokenizer)
    for text in ("\u6f22", " x", "two words", "\u00a9\u00e9"):
        token_id = ids_of(tokenizer, text)[0]
        as_text = token_text.token_bytes(token_id).decode(errors="replace")
        # the last one is taken for bytes in disguise by the decoder as well
        assert as_text == tokenizer.decode([token_id])


@pytest.mark.parametrize("token_id", [10**6, 2**31 - 1])
def test_ids_past_the_vocabulary_have_no_bytes(token_id: int) -> None:
    assert text_of(BYTE_LEVEL).token_bytes(token_id) == b""


def test_size_and_longest_are_those_of_the_vocabulary() -> None:
    token_text = text_of(BYTE_FALLBACK)
    assert token_text.vocab_size == BYTE_FALLBACK.get_vocab_size()
    # six of <0x41>, six of the word with its mark
    assert token_text.longest == 6
    with_long = byte_level_with("x" * 50)
    assert text_of(with_long).longest == 50


def byte_level_with(token: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    tokenizer.add_tokens([AddedToken(token, normalized=False)])
    return tokenizer
