"""Progress on a terminal and in a log."""

from __future__ import annotations

import io

import pytest

from mlx_server.progress import TerminalProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines as a person sees them."""
        lines = self.getvalue().split("\n")
        return [_overwritten(line).rstrip() for line in lines]


def _overwritten(line: str) -> str:
    seen = ""
    for drawn in line.split("\r"):
        seen = drawn + seen[len(drawn) :]
    return seen


def test_a_terminal_has_one_line_a_stage() -> None:
    terminal = Terminal()
    report = TerminalProgress(terminal)
    for done in range(0, 101, 25):
        report("download", done * 10**6, 100 * 10**6)
    report("convert", 0, 272)
    report("convert", 136, 272)
    assert terminal.screen() == [
        f"download   [{'#' * 30}] 100 %, 100 of 100 MB",
        f"convert    [{'#' * 15}{'.' * 15}]  50 %",
    ]


def test_a_terminal_is_not_drawn_on_when_nothing_new_can_be_seen() -> None:
    terminal = Terminal()
    report = TerminalProgress(terminal)
    for done in range(1000):
        report("convert", done, 100_000)
    assert terminal.getvalue().count("\r") == 1
    for _ in range(3):
        report("convert", 100_000, 100_000)
    assert terminal.getvalue().count("\r") == 2
    assert terminal.getvalue().endswith("100 %\r\n")


def test_a_shorter_line_leaves_nothing_of_a_longer_one() -> None:
    terminal = Terminal()
    report = TerminalProgress(terminal)
    report("download", 1, 100 * 10**6)
    report("download", 1, 10)
    assert terminal.screen() == [f"download   [{'#' * 3}{'.' * 27}]  10 %"]


def test_a_log_has_a_line_every_ten_percent() -> None:
    log = io.StringIO()
    report = TerminalProgress(log)
    for done in range(1001):
        report("download", done, 1000)
    lines = log.getvalue().splitlines()
    assert lines == [f"download {percent:3} %" for percent in range(0, 101, 10)]


def test_a_log_has_the_end_of_a_stage_that_is_over_at_once() -> None:
    log = io.StringIO()
    TerminalProgress(log)("convert", 5, 5)
    assert log.getvalue() == "convert 100 %\n"


@pytest.mark.parametrize(("done", "total"), [(0, 0), (7, 5), (-1, 0)])
def test_odd_numbers_count_as_done(done: int, total: int) -> None:
    log = io.StringIO()
    TerminalProgress(log)("download", done, total)
    assert log.getvalue() == "download 100 %\n"


def test_an_error_text_does_not_end_up_behind_a_bar() -> None:
    terminal = Terminal()
    with pytest.raises(RuntimeError), TerminalProgress(terminal) as report:
        report("download", 1, 3)
        raise RuntimeError
    assert terminal.getvalue().endswith(" 33 %\r\n")


def test_a_bar_that_was_never_drawn_leaves_no_line() -> None:
    terminal = Terminal()
    with TerminalProgress(terminal):
        pass
    assert terminal.getvalue() == ""


def test_progress_is_drawn_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalProgress()("download", 1, 2)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "download  50 %\n"
