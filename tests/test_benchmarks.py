"""That the benchmarks' helpers compute what their tables say."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.bare import bare_row
from benchmarks.bench import Bench, Scenario, collect
from benchmarks.client import Answer, NothingToMeasure, RequestFailed
from benchmarks.compare import build_parser
from benchmarks.machine import (
    Blas,
    cpu_s,
    cpu_s_of_tasks,
    parse_blas,
    rss_bytes,
    seconds_of,
    ticks_of,
)
from benchmarks.overhead import module_of
from benchmarks.report import Figure, Samples, advantage, format_value, head, longest_gap, row
from benchmarks.scenarios.streams import total_rate
from benchmarks.servers import KINDS, OURS, Kind, command_of
from benchmarks.soak import Outcome
from benchmarks.soak_requests import Expected, draw, expected_of
from benchmarks.svg import line_chart, nice_ceiling
from benchmarks.texts import Writer
from tests.benchmark_answers import CountingModel, answer_of, ask_canned, said
from tests.tiny.checkpoints import tiny_llama


def test_a_row_has_medians_and_ratios_that_favour_ours_above_1() -> None:
    found = {"ours": Samples(), "peer": Samples()}
    found["ours"].add("rate", 10.0, 30.0, 20.0)
    found["peer"].add("rate", 8.0)
    more, less = Figure("rate", "1/s", "more"), Figure("rate", "s", "less")
    assert row("1.", more, "ours", ["peer"], found) == "| 1. | rate | 1/s | 20 | 8 | 2.50 |"
    assert row("", less, "ours", ["peer"], found) == "|  | rate | s | 20 | 8 | 0.40 |"
    assert head("ours", ["peer"]).splitlines()[1].count("---") == 6


def test_a_figure_that_nobody_gave_is_a_dash_without_a_ratio() -> None:
    found = {"ours": Samples({"rate": [2.0]}), "peer": Samples()}
    assert row("1.", Figure("rate", "s", "less"), "ours", ["peer"], found).endswith("| 2 | – |  |")


@pytest.mark.parametrize("values", [(None, 1.0), (1.0, None), (math.inf, 1.0), (1.0, 0.0)])
def test_there_is_no_ratio_to_what_was_not_measured(values: tuple[float, float]) -> None:
    assert advantage(*values, "more") is None


def test_values_are_shown_with_the_digits_that_matter() -> None:
    figure = Figure("wait", "s", "less", limit=8)
    shown = [format_value(v, figure) for v in (0.0, 1.234, 12.34, 123.4, -15.0, math.inf)]
    assert shown == ["0", "1.23", "12.3", "123", "-15", "> 8"]


def test_the_longest_gap_is_of_what_lies_behind_the_moment() -> None:
    times = [0.0, 5.0, 5.1, 5.4, 5.5]
    assert longest_gap(times, since=0.0) == 5.0
    assert longest_gap(times, since=5.05) == pytest.approx(0.3)
    # under way at the moment
    assert longest_gap(times, since=3.0) == 5.0
    assert longest_gap(times, since=9.0) == 0.0


def test_the_total_rate_is_over_the_whole_time_and_the_tokens_of_usage() -> None:
    answers = [answer_of(10.0, 14.0, num_tokens=30), answer_of(11.0, 15.0, num_tokens=20)]
    assert total_rate(answers) == 10.0


def test_what_an_answer_lacks_is_no_figure() -> None:
    silent, at_once = Answer(sent_at=1.0), Answer(sent_at=1.0, text_times=[2.0, 2.0])
    for lacking in (
        lambda: silent.first_text_s,
        lambda: silent.tokens_per_s,
        lambda: at_once.tokens_per_s,
        lambda: silent.num_prompt_tokens,
        lambda: total_rate([answer_of(10.0, 14.0, num_tokens=0)]),
    ):
        with pytest.raises(NothingToMeasure):
            lacking()


def test_the_blas_is_read_from_the_line_of_the_log() -> None:
    assert parse_blas("OpenBLAS 0.3 X from /a/b.so, threads: 2") == Blas(
        "/a/b.so", 2, "OpenBLAS 0.3 X"
    )
    assert parse_blas("MLX's own, which is slow", 4).path is None


def test_the_use_of_a_process_is_read_from_the_system() -> None:
    assert rss_bytes(os.getpid()) > 10e6
    assert cpu_s(os.getpid()) > 0
    assert ticks_of("1 (a (b) c) S 0 0 0 0 0 0 0 0 0 0 30 12 0 0") == 42
    assert seconds_of("1:02:03.5") == 3723.5


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells of threads")
def test_threads_are_counted_by_their_native_ids() -> None:
    assert threading.get_native_id() in cpu_s_of_tasks()


@pytest.mark.parametrize("kind", ["mlx_server", "mlx_lm", "mlx_vlm"])
def test_every_server_is_told_its_model_its_port_and_the_options(kind: Kind) -> None:
    command = command_of(kind, 8123, [Path("/m/a"), Path("/m/b")], ["--x"])
    assert command[command.index("--port") + 1] == "8123"
    assert "/m/a" in command
    assert command[-1] == "--x"
    assert ("/m/b" in command) == (kind == OURS)


def test_what_a_server_gave_before_it_failed_is_kept() -> None:
    def measure(bench: Bench, kind: Kind, samples: Samples) -> None:
        samples.add("wait", 1.0)
        raise TimeoutError("too slow")

    bench = Bench("m", Blas(None, 1, ""), Path(), 1, True, 1.0)
    samples = collect(Scenario("1", "", (), measure), bench, OURS)
    assert samples.values == {"wait": [1.0]}
    assert samples.failure == "TimeoutError: too slow"


@pytest.mark.parametrize("mistake", [IndexError, ZeroDivisionError])
def test_a_mistake_of_the_benchmark_is_no_failure_of_the_server(mistake: type[Exception]) -> None:
    def measure(bench: Bench, kind: Kind, samples: Samples) -> None:
        raise mistake

    bench = Bench("m", Blas(None, 1, ""), Path(), 1, True, 1.0)
    with pytest.raises(mistake):
        collect(Scenario("1", "", (), measure), bench, OURS)


def test_the_folder_of_a_server_is_empty_each_time(tmp_path: Path) -> None:
    bench = Bench("m", Blas(None, 1, ""), tmp_path, 1, True, 1.0)
    (bench.folder("a") / "left").touch()
    assert list(bench.folder("a").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ["--servers", "mlx_server,vllm"],
            "must be some of mlx_server, mlx_lm, mlx_vlm, not 'vllm'",
        ),
        (["--servers", ""], "argument --servers: must be some of"),
        (["--only", "2,99"], "argument --only: must be some of 1, 2, 3,"),
    ],
)
def test_rows_and_servers_that_do_not_exist_are_refused(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(arguments)
    assert reason in capsys.readouterr().err


def test_rows_and_servers_are_taken_as_named() -> None:
    args = build_parser().parse_args(["--only", "8,4b", "--servers", "mlx_lm"])
    assert (args.only, args.servers) == (["8", "4b"], ["mlx_lm"])
    assert build_parser().parse_args([]).servers == list(KINDS)


def test_prompts_have_their_length_and_differ_by_their_name(tmp_path: Path) -> None:
    writer = Writer(tiny_llama(tmp_path / "m"))
    assert len(writer.token_ids(100, "a")) == 100
    assert writer.text(100, "a") == writer.text(100, "a")
    assert writer.text(100, "a")[:2] != writer.text(100, "b")[:2]


def test_time_is_put_down_to_files_of_ours_and_to_packages_of_others() -> None:
    root = Path(__file__).parent.parent
    assert module_of(str(root / "mlx_server/api/sse.py"), "f") == "mlx_server/api/sse.py"
    assert module_of("/x/site-packages/h11/_state.py", "f") == "h11"
    assert module_of("~", "<built-in method builtins.len>") == "builtins.len"


def test_the_slope_of_memory_is_that_of_the_second_half() -> None:
    memory = [(0.0, 0), (30.0, 500_000_000), (60.0, 500_000_000), (90.0, 501_000_000)]
    assert Outcome(memory=memory).mb_per_minute == pytest.approx(2.0)
    assert Outcome(memory=memory[:1]).mb_per_minute == 0.0


@pytest.mark.parametrize(("mb_per_minute", "is_good"), [(-9.0, True), (1.9, True), (2.1, False)])
def test_a_soak_is_good_while_its_memory_hardly_grows(mb_per_minute: float, is_good: bool) -> None:
    memory = [(60.0 * i, int(5e8 + 1e6 * mb_per_minute * i)) for i in range(8)]
    assert Outcome(memory=memory).is_good == is_good


@pytest.mark.parametrize("kind", ["wrong", "4xx", "5xx", "broken off", "left over"])
def test_one_bad_answer_spoils_a_soak(kind: str) -> None:
    assert Outcome(Counter(same=99, tie=3, left=2)).is_good
    assert not Outcome(Counter({"same": 99, kind: 1})).is_good


def entry(token: str, *logprobs: float) -> dict[str, object]:
    return {"token": token, "top_logprobs": [{"logprob": value} for value in logprobs]}


ALONE = expected_of(
    {
        "logprobs": {
            "content": [entry("ab", -0.1, -3.0), entry("cd", -0.69, -0.6905), entry("ef", -1, -1.1)]
        },
        "message": {"content": "abcdef"},
        "finish_reason": "length",
    }
)


def test_tokens_are_as_likely_as_each_other_within_a_thousandth() -> None:
    assert Expected("abcdef", "length", 3, ((2, 4),)) == ALONE


def test_an_answer_may_differ_only_from_where_two_tokens_were_as_likely() -> None:
    assert ALONE.judge(said("abcdef", "length", 3)) == "same"
    assert ALONE.judge(said("abXYZ", "length", 3)) == "tie"
    assert ALONE.judge(said("abX", "stop", 2)) == "tie"
    assert ALONE.judge(said("aXcdef", "length", 3)) == "wrong"
    assert ALONE.judge(said("abcdef", "stop", 3)) == "wrong"


@pytest.mark.parametrize(
    "answer",
    [
        said("ab", "length", 1),
        said("abX", "length", 2),
        said("ab", None, 1),
        said("ab", "error", 1, error={"code": "generation_failed"}),
        said("abcdef", "length", 3, error={"code": "generation_failed"}),
    ],
    ids=["short", "short behind a tie", "no reason", "error", "error behind all of it"],
)
def test_an_answer_that_breaks_off_is_bad_even_at_a_tie(answer: Answer) -> None:
    assert ALONE.judge(answer) == "broken off"


def test_a_stream_may_end_with_an_error() -> None:
    stream = (
        b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
        b'data: {"choices": [{"delta": {}, "finish_reason": "error"}], "error": {"code": "x"}}\n\n'
        b"data: [DONE]\n\n"
    )
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(stream), stream)
    answer = asyncio.run(ask_canned(reply))
    assert (answer.text, answer.finish_reason, answer.error) == ("a", "error", {"code": "x"})


def test_requests_of_a_seed_are_always_the_same_and_go_to_every_model(tmp_path: Path) -> None:
    models = {tiny_llama(tmp_path / "a"): False, tiny_llama(tmp_path / "b"): True}
    drawn = draw(models, 12, seed=3)
    assert drawn == draw(models, 12, seed=3)
    assert {request.model for request in drawn} == set(models)
    with_pictures = {r.model for r in drawn if isinstance(r.body["messages"][-1]["content"], list)}
    assert with_pictures == {tmp_path / "b"}


def test_a_chart_is_whole_xml_with_a_line_for_every_series() -> None:
    chart = line_chart("t & t", "rows", "ms", {"a": [(1, 10.0), (4, 40.0)], "b": [(1, 5.0)]})
    tree = ElementTree.fromstring(chart)
    names = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert {"t & t", "a", "b", "50"} <= set(names)
    assert len([e for e in tree.iter() if e.tag.endswith("circle")]) == 3


def test_axes_end_at_round_numbers() -> None:
    assert [nice_ceiling(v) for v in (0.7, 1.0, 1.1, 34.0, 560.0)] == [1.0, 1.0, 2.0, 50.0, 1000.0]


def test_the_bare_loop_runs_a_model_as_often_as_it_says() -> None:

    model = CountingModel()
    assert bare_row(model, [1, 2, 3], 5) > 0
    assert model.lengths == [3, 1, 1, 1, 1]


def test_events_are_read_from_chunks_cut_anywhere() -> None:

    stream = (
        b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n: beat\n\n'
        b'data: {"choices": [{"delta": {"content": "b"}, "finish_reason": "length"}]}\n\n'
        b'data: {"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens_details": '
        b'{"cached_tokens": 2}}}\n\ndata: [DONE]\n\n'
    )
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(p), p) for p in (stream[:20], stream[20:90], stream[90:])
    )
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    answer = asyncio.run(ask_canned(reply))
    assert (answer.text, answer.finish_reason, len(answer.text_times)) == ("ab", "length", 2)
    assert (answer.num_tokens, answer.num_cached_tokens) == (3, 2)


def test_an_answer_of_a_known_length_is_read_whole() -> None:
    body = b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": null}'
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    answer = asyncio.run(ask_canned(reply))
    # nothing said of tokens: one piece of text
    assert (answer.text, answer.num_tokens) == ("hi", 1)


def test_an_error_and_an_early_end_are_exceptions() -> None:
    with pytest.raises(RequestFailed, match="HTTP 503: busy"):
        asyncio.run(ask_canned(b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy"))
    with pytest.raises(EOFError):
        asyncio.run(ask_canned(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf"))
