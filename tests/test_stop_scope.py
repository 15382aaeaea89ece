"""Stop strings end the answer; what a model only thinks of goes on."""

from __future__ import annotations

import pytest

from mlx_server.engine.stop_scope import StopBehindReasoning
from mlx_server.parsers.reasoning import make_segmenter
from tests.parser_cuts import cuts


def through(pieces: list[str], *stop: str, name: str = "think") -> tuple[str, bool]:
    matcher = StopBehindReasoning(stop, make_segmenter(name, is_reasoning=False))
    text = "".join(map(matcher.feed, pieces)) + matcher.finish()
    return text, matcher.is_stopped


@pytest.mark.parametrize(
    ("text", "out", "is_stopped"),
    [
        ("<think>a STOP</think>b", "<think>a STOP</think>b", False),
        ("<think>a STOP</think>b STOP c", "<think>a STOP</think>b ", True),
        ("<think>a STO</think>P", "<think>a STO</think>P", False),
        ("<think>a STOP", "<think>a STOP", False),
        ("b STOP <think>", "b ", True),
        ("b STO", "b STO", False),
        ("<thi STOP", "<thi ", True),
    ],
)
def test_b055_only_what_is_no_reasoning_is_looked_at(text: str, out: str, is_stopped: bool) -> None:
    for pieces in [(text,), *cuts(text)]:
        assert through(list(pieces), "STOP") == (out, is_stopped)


def test_what_may_be_half_a_stop_string_comes_before_the_mark_behind_it() -> None:
    text = "x STO<|channel>thought\nSTOP<channel|>P"
    assert through([text], "STOP", name="gemma4") == (text, False)
    assert through(list(text), "STOP", name="gemma4") == (text, False)
