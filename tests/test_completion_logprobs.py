"""The four lists of a completion's logprobs, and where the tokens of a prompt begin."""

from __future__ import annotations

import pytest

from mlx_server.api.completion_logprobs import (
    TokenOffsets,
    extend,
    no_logprobs,
    prompt_logprobs,
    prompt_offsets,
    top_logprobs,
)
from mlx_server.engine.sequence import PromptLogprobs, TokenLogprob


def entry(token: str, logprob: float = -0.5, *top: TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token, token.encode(), logprob, top)


@pytest.mark.parametrize(
    ("tokens", "text", "offsets"),
    [
        pytest.param([b"ab", b"c"], "abc", [0, 2], id="as they are"),
        pytest.param([b"<s>", b"ab", b"c"], "abc", [0, 0, 2], id="beginning of text"),
        pytest.param([b"<s>", b" ab", b"c"], "abc", [0, 0, 2], id="space before all"),
        pytest.param([b"ab", b"c", b"</s>"], "abc", [0, 2, 3], id="end of text"),
        pytest.param([b"\xc3", b"\xa9", b"a"], "\u00e9a", [0, 0, 1], id="half a character"),
        pytest.param([b"abc", b"d"], "ABCD", [0, 3], id="other text"),
        pytest.param([b"abc", b"d", b"e"], "x", [0, 1, 1], id="shorter text"),
        pytest.param([b"<s>"], "", [0], id="no text"),
    ],
)
def test_tokens_of_a_prompt_begin_in_its_text(
    tokens: list[bytes], text: str, offsets: list[int]
) -> None:
    assert prompt_offsets(tokens, text) == offsets


def test_the_first_token_of_a_prompt_has_nulls() -> None:
    prompt = PromptLogprobs(b"a", (entry("b"), entry("c")))
    assert list(prompt_logprobs(prompt, "abc")) == [
        {
            "tokens": ["a", "b", "c"],
            "token_logprobs": [None, -0.5, -0.5],
            "top_logprobs": [None, {"b": -0.5}, {"c": -0.5}],
            "text_offset": [0, 1, 2],
        }
    ]


def test_groups_of_a_long_prompt_add_up_to_all_of_it() -> None:
    prompt = PromptLogprobs(b"a", tuple(entry("b", -0.5, *[entry("c")] * 5) for _ in range(999)))
    found = no_logprobs()
    groups = list(prompt_logprobs(prompt, "a" + "b" * 999))
    for group in groups:
        extend(found, group)
    assert len(groups) > 10
    assert found["text_offset"] == list(range(1000))
    assert found["token_logprobs"] == [None, *[-0.5] * 999]


def test_the_tokens_of_an_answer_begin_behind_the_echo() -> None:
    assert TokenOffsets(7).logprobs([entry("ab"), entry("c")])["text_offset"] == [7, 9]


def test_of_tokens_that_look_the_same_the_likeliest_is_shown() -> None:
    shown = top_logprobs(entry("\ufffd", -3.0, entry("\ufffd", -0.5), entry("\ufffd", -2.0)))
    assert shown == {"\ufffd": -0.5}
