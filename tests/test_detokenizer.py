"""Text comes as soon as it is whole, and all of it is what the tokenizer makes of all tokens."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlx_server.engine.detokenizer import Detokenizer
from mlx_server.engine.token_text import TokenText

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
WORDS = ["\u2581Hello", "\u2581world", "\u2581", "ly", "\u2581\u2581", "\u2581a", "b", "\n"]
PARTS = ["\u00f0\u0141", "\u013a\u0122a", "\u00c3", "\u00a9b", "a\u00c3", "\u00a9\u00c3"]
SPECIAL = ["<s>", "</s>"]


def byte_level() -> Tokenizer:
    """As GPT-2's and its many heirs': bytes in printable disguise, some of them merged."""
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate([*SPECIAL, *BYTES, *PARTS])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's and Gemma's: words that begin with a mark for the space, bytes for the rest."""
    pieces = [*SPECIAL, *WORDS, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL])
    return tokenizer


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def wrap(tokenizer: Tokenizer) -> Any:
    return SimpleNamespace(backend_tokenizer=tokenizer)


def ids_of(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    vocab = tokenizer.get_vocab()
    return [vocab[token] for token in tokens]


def bytes_as_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token for each byte."""
    if tokenizer is BYTE_FALLBACK:
        return ids_of(tokenizer, *(f"<0x{byte:02X}>" for byte in data))
    text = data.decode("latin-1")
    # GPT-2's stand-ins: printable characters for themselves, the others in order from 256 on
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(b): chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)}
    return ids_of(tokenizer, *(table[char] for char in text))


def pieces(tokenizer: Tokenizer, token_ids: Sequence[int], prompt: Sequence[int] = ()) -> list[str]:
    """What each token brings out, and last what the end brings."""
    detokenizer = Detokenizer(wrap(tokenizer), prompt)
    return [*map(detokenizer.feed, token_ids), detokenizer.finish()]


def whole(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(token_ids), skip_special_tokens=True))


both = pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK], ids=["level", "fallback"])


@both
def test_b096_characters_of_many_tokens_come_whole_and_letters_at_once(
    tokenizer: Tokenizer,
) -> None:
    out = pieces(tokenizer, bytes_as_ids(tokenizer, "hi\U0001f600\u00e9\u6f22!".encode()))
    assert out == [
        *("h", "i"),
        *("", "", "", "\U0001f600"),
        *("", "\u00e9"),
        *("", "", "\u6f22"),
        *("!", ""),
    ]


@both
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text(max_size=20), st.text(max_size=5))
def test_b096_any_text_byte_by_byte_comes_out_exactly(
    tokenizer: Tokenizer, text: str, prompt: str
) -> None:
    text, prompt = text.replace("\ufffd", "?"), prompt.replace("\ufffd", "?")
    prompt_ids = bytes_as_ids(tokenizer, prompt.encode())
    out = pieces(tokenizer, bytes_as_ids(tokenizer, text.encode()), prompt_ids)
    if prompt or tokenizer is BYTE_LEVEL:
        assert "".join(out) == text
    else:
        assert "".join(out) == text.removeprefix(" "), "such tokenizers drop one leading space"
    assert not any("\ufffd" in piece for piece in out)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 1), max_size=24))
def test_any_tokens_give_the_text_of_all_of_them(token_ids: list[int]) -> None:
    out = "".join(pieces(BYTE_LEVEL, token_ids))
    assert out.rstrip("\ufffd") == whole(BYTE_LEVEL, token_ids).rstrip("\ufffd")


words = st.lists(st.sampled_from([*WORDS, *SPECIAL]), max_size=12)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(words, words)
def test_leading_spaces_are_those_of_the_text_behind_the_prompt(
    prompt: list[str], completion: list[str]
) -> None:
    prompt_ids = ids_of(BYTE_FALLBACK, *prompt)
    token_ids = ids_of(BYTE_FALLBACK, *completion)
    out = "".join(pieces(BYTE_FALLBACK, token_ids, prompt_ids))
    assert whole(BYTE_FALLBACK, prompt_ids) + out == whole(BYTE_FALLBACK, [*prompt_ids, *token_ids])


def test_a_space_comes_with_its_word_behind_a_prompt() -> None:
    prompt = ids_of(BYTE_FALLBACK, "<s>", "\u2581Hello")
    out = pieces(BYTE_FALLBACK, ids_of(BYTE_FALLBACK, "\u2581world", "ly", "\u2581a"), prompt)
    assert out == [" world", "ly", " a", ""]


def test_special_tokens_have_no_text_and_hold_nothing_back() -> None:
    ids = ids_of(BYTE_LEVEL, "<s>", "a", "<s>", "</s>", "b", "</s>")
    assert pieces(BYTE_LEVEL, ids) == ["", "a", "", "", "b", "", ""]


def test_half_a_character_at_the_end_is_dropped() -> None:
    ids = bytes_as_ids(BYTE_LEVEL, "ok\U0001f600".encode()[:-1])
    assert pieces(BYTE_LEVEL, ids) == ["o", "k", "", "", "", ""]


def test_text_before_half_a_character_in_the_same_token_comes_at_the_end() -> None:
    ids = [*ids_of(BYTE_LEVEL, *PARTS[:2]), *ids_of(BYTE_LEVEL, PARTS[2])]
    assert "".join(pieces(BYTE_LEVEL, ids)) == "\U0001f600a"


def test_whole_characters_come_though_each_token_ends_inside_of_one() -> None:
    ids = ids_of(BYTE_LEVEL, PARTS[4], PARTS[5], PARTS[5], PARTS[3])
    assert pieces(BYTE_LEVEL, ids) == ["a", "\u00e9", "\u00e9", "\u00e9b", ""]


@both
def test_text_flows_though_it_is_nothing_but_replacement_characters(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(wrap(tokenizer), ids_of(tokenizer, "b"))
    num_tokens = 0
    for _ in range(300):
        num_tokens += len(detokenizer.feed(bytes_as_ids(tokenizer, b"\xff")[0]))
    assert num_tokens > 250
    assert len(detokenizer._window) < 50, "each step decodes all of it again"


@both
def test_a_prompt_that_ends_inside_a_character_costs_no_text(tokenizer: Tokenizer) -> None:
    smile = "\U0001f600".encode()
    for cut in (1, 2, 3):
        first = "x" if tokenizer is BYTE_LEVEL else "b"
        prompt = [*ids_of(tokenizer, first), *bytes_as_ids(tokenizer, smile[:cut])]
        rest = [*bytes_as_ids(tokenizer, smile[cut:]), *ids_of(tokenizer, first)]
        assert "".join(pieces(tokenizer, rest, prompt)) == "\U0001f600" + first


def test_a_prompt_that_ends_with_a_replacement_character_is_not_repeated() -> None:
    prompt = bytes_as_ids(BYTE_LEVEL, "abc\ufffd".encode())
    assert "".join(pieces(BYTE_LEVEL, bytes_as_ids(BYTE_LEVEL, b"de"), prompt)) == "de"
    assert "".join(pieces(BYTE_LEVEL, [], prompt)) == ""


def test_without_tokens_there_is_no_text() -> None:
    assert pieces(BYTE_LEVEL, []) == [""]
    assert pieces(BYTE_LEVEL, [], ids_of(BYTE_LEVEL, "a", "b")) == [""]


@both
def test_special_tokens_that_are_not_hidden_have_a_text(tokenizer: Tokenizer) -> None:
    start, end, word = ids_of(tokenizer, "<s>", "</s>", "b")
    detokenizer = Detokenizer(wrap(tokenizer), [start, word], frozenset({end}))
    out = [detokenizer.feed(token_id) for token_id in (word, start, end, word, start)]
    assert [*out, detokenizer.finish()] == ["b", "<s>", "", "b", "<s>", ""]


def test_marks_show_the_special_tokens_of_which_they_are_made() -> None:
    text = TokenText(wrap(BYTE_LEVEL))
    start, end = ids_of(BYTE_LEVEL, "<s>", "</s>")
    assert text.hidden_ids(()) == {start, end}
    assert text.hidden_ids(("<s>thought\n", "x")) == {end}
