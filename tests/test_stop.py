"""Stop strings are found wherever the text is cut, and none of them comes out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.engine.stop import StopMatcher


def feed_all(stop: tuple[str, ...], pieces: list[str]) -> tuple[str, bool]:
    """What comes out in the end, and whether a stop string was found."""
    matcher = StopMatcher(stop)
    out = "".join(map(matcher.feed, pieces))
    return out + ("" if matcher.is_stopped else matcher.finish()), matcher.is_stopped


def expected(stop: tuple[str, ...], text: str) -> tuple[str, bool]:
    """The text before the stop string that is complete first, and of those the longest."""
    ends = [(text.index(s) + len(s), text.index(s)) for s in stop if s in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


def two_cuts(text: str) -> list[list[str]]:
    places = itertools.combinations_with_replacement(range(len(text) + 1), 2)
    return [[text[:i], text[i:j], text[j:]] for i, j in places]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("STOP",), "one STOP two"),
        (("STOP",), "STOP"),
        (("STOP",), "no such thing ST"),
        (("STOP",), "SSTSTOSTOP."),
        (("aab",), "aaaab"),
        (("abab",), "abaabab!"),
        (("\n\n", "###"), "a\nb\n\nc###"),
        (("###", "\n\n"), "a#b##c###\n\n"),
        (("abcd", "bc"), "xabcd"),
        (("bc", "abcd"), "xabcd"),
        (("abc", "c"), "zabc"),
        (("ab", "abc"), "zabc"),
        (("abcx", "bcy", "cz"), "abcyabcz"),
        (("é", "漢字"), "caf\u0065 漢 漢字"),
        (("\U0001f600",), "a\U0001f600b"),
        ((), "anything at all"),
    ],
)
def test_b053_every_cut_of_the_text_gives_the_same(stop: tuple[str, ...], text: str) -> None:
    want = expected(stop, text)
    for pieces in [[text], list(text), *two_cuts(text)]:
        assert feed_all(stop, pieces) == want, pieces


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("ab\nc", max_size=5), max_size=12),
)
def test_b053_pieces_of_any_size_give_the_same(stop: list[str], pieces: list[str]) -> None:
    assert feed_all(tuple(stop), pieces) == expected(tuple(stop), "".join(pieces))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.text("abc", max_size=30),
)
def test_text_is_held_back_only_while_it_may_become_a_stop_string(
    stop: list[str], text: str
) -> None:
    matcher = StopMatcher(tuple(stop))
    sent = ""
    for i, char in enumerate(text):
        sent += matcher.feed(char)
        if matcher.is_stopped:
            break
        held = text[: i + 1].removeprefix(sent)
        assert held == "" or any(s.startswith(held) for s in stop)
        assert not any(s in sent + held for s in stop)


def test_nothing_comes_out_after_a_stop() -> None:
    matcher = StopMatcher(("X",))
    assert matcher.feed("aXb") == "a"
    assert matcher.is_stopped
    assert matcher.feed("c") == ""
    assert matcher.finish() == ""


def test_the_string_that_was_found_is_told() -> None:
    matcher = StopMatcher(("X", "aXb", "bX"))
    assert matcher.matched is None
    matcher.feed("abX")
    assert matcher.matched == "bX"


def test_what_was_held_back_comes_out_at_the_end() -> None:
    matcher = StopMatcher(("END OF TEXT",))
    assert matcher.feed("the END OF") == "the "
    assert matcher.finish() == "END OF"
    assert matcher.finish() == ""
    assert not matcher.is_stopped
