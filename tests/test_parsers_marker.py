from __future__ import annotations

from mlx_server.parsers.marker import MarkerSplitter, Split


def test_the_marker_that_comes_first_splits_the_text() -> None:
    splitter = MarkerSplitter("<call>", "<fun")
    assert splitter.feed("a <fu") == Split("a ")
    assert splitter.feed("n> <call>") == Split("", "> <call>", "<fun")
    assert splitter.feed("b <call> <fun") == Split("b ", " <fun", "<call>")


def test_no_more_is_held_back_than_the_longest_beginning_of_a_marker() -> None:
    splitter = MarkerSplitter("<<a", "<b")
    assert splitter.feed("x <<") == Split("x ")
    assert splitter.feed("c <") == Split("<<c ")
    assert splitter.finish() == "<"
