"""Requests that nobody waits for, or that have had their time, stop at once."""

from __future__ import annotations

import math

import pytest

from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import Delta, FinishReason, Progress, Sequence
from mlx_server.errors import (
    EngineStopped,
    InvalidRequest,
    ModelUnavailable,
)
from tests.scripted import Script
from tests.worker_harness import (
    TOKENS_AHEAD,
    Harness,
    ask,
    is_last,
)


def count_after_abort(harness: Harness, script: Script) -> int:
    """How many tokens are still computed after an abort that has just been asked for."""
    before = script.num_tokens
    # a prompt that is refused takes its turn and computes no token
    assert isinstance(harness.run(ask("x" * 10_000)), InvalidRequest)
    return script.num_tokens - before


def test_b066_an_abort_while_decoding_stops_at_once(harness: Harness, script: Script) -> None:
    script.token_s = 0.003
    script.say(*["x"] * 5000)
    sequence = ask()
    harness.submit(sequence)
    harness.wait_for_tokens(sequence, 5)
    harness.worker.abort(sequence.request.request_id)
    assert count_after_abort(harness, script) <= TOKENS_AHEAD
    assert not any(is_last(event) for event in harness.events(sequence))


def test_b066_an_abort_in_prefill_computes_no_token(harness: Harness, script: Script) -> None:
    script.say("never")
    sequence = ask("y" * 4000)
    harness.submit(sequence)
    harness.wait_for(sequence, lambda e: isinstance(e, Progress) and e.stage == "prefill")
    harness.worker.abort(sequence.request.request_id)
    assert count_after_abort(harness, script) == 0
    assert script.log.count("prefill") == 0


def test_b066_an_abort_in_the_queue_lets_the_others_pass(harness: Harness, script: Script) -> None:
    script.say(*"aaa")
    script.say("last")
    first, second, third = ask("one"), ask("two"), ask("three")
    script.gate.clear()
    harness.submit(first, second, third)
    harness.worker.abort(second.request.request_id)
    script.gate.set()
    assert harness.finish(third) == "last"
    assert harness.finish(first) == "aaa"
    assert all(isinstance(event, Progress) for event in harness.events(second))


def test_all_sequences_of_a_request_are_aborted(pair: Harness, script: Script) -> None:
    for _ in range(3):
        script.say(*["x"] * 5000)
    script.token_s = 0.002
    sequences = [ask("one") for _ in range(3)]
    for sequence in sequences[1:]:
        sequence.request = sequences[0].request
    pair.worker.submit(sequences)
    pair.wait_for_start(sequences[1])
    pair.worker.abort(sequences[0].request.request_id)
    assert count_after_abort(pair, script) <= 2 * TOKENS_AHEAD
    assert pair.scheduler.sequences() == []


def test_aborting_what_is_not_there_is_harmless(harness: Harness, script: Script) -> None:
    script.say("fine")
    harness.worker.abort("nobody")
    sequence = ask()
    assert harness.run(sequence) == "fine"
    harness.worker.abort(sequence.request.request_id)
    assert harness.run(ask()) == "fine"


def test_an_answer_out_of_time_is_cut(harness: Harness, script: Script) -> None:
    script.token_s = 0.005
    script.say(*["x"] * 5000)
    script.say("fine")
    late = ask(stop=("xy",))
    harness.submit(late)
    harness.wait_for_tokens(late, 3)
    late.deadline = 0.0
    text = harness.finish(late)
    assert isinstance(text, str)
    assert 3 <= len(text) < 1000
    last = harness.events(late)[-1]
    assert isinstance(last, Delta)
    assert last.finish_reason is FinishReason.LENGTH
    assert last.num_completion_tokens == len(text)
    assert harness.run(ask()) == "fine"


@pytest.mark.parametrize("text", ["decoding", "y" * 4000], ids=["decoding", "in prefill"])
def test_what_an_answer_out_of_time_has_computed_is_kept(
    harness: Harness, script: Script, text: str
) -> None:
    script.prefill_s, script.token_s = 0.002, 0.005
    script.say(*["x"] * 5000)
    late, again = ask(text), ask(text[:200])
    harness.submit(late)
    harness.wait_for(late, lambda e: isinstance(e, Delta) or e == Progress("prefill", 40, 4000))
    late.deadline = 0.0
    harness.finish(late)
    harness.submit(again)
    assert harness.wait_for_start(again).num_cached_tokens > 0


def test_a_prompt_out_of_time_is_refused(harness: Harness, script: Script) -> None:
    script.say("fine")
    in_prefill, queued = ask("y" * 4000), ask()
    harness.submit(in_prefill, queued)
    harness.wait_for(in_prefill, lambda e: isinstance(e, Progress) and e.stage == "prefill")
    in_prefill.deadline = queued.deadline = 0.0
    for sequence in (in_prefill, queued):
        assert isinstance(harness.finish(sequence), ModelUnavailable)
    assert harness.run(ask()) == "fine"


def test_answers_that_have_not_begun_are_cut_with_the_others_of_their_request(
    harness: Harness, script: Script
) -> None:
    script.token_s = 0.005
    script.say(*["x"] * 5000)
    first = ask(n=2)
    second = Sequence(-1, first.request, 1, "a", seed=1, deadline=math.inf)
    harness.worker.submit([first, second])
    harness.wait_for_tokens(first, 3)
    first.deadline = second.deadline = 0.0
    assert isinstance(harness.finish(first), str)
    assert harness.finish(second) == ""
    assert harness.scheduler.sequences() == []


def test_a_failure_in_putting_away_leaves_nobody_waiting(
    harness: Harness, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(runner: Runner, sequence: Sequence) -> None:
        raise RuntimeError("boom")

    script.token_s = 0.005
    script.say(*["x"] * 5000)
    running, waiting = ask(), ask()
    harness.submit(running, waiting)
    harness.wait_for_tokens(running, 2)
    monkeypatch.setattr(Runner, "drop", drop)
    harness.worker.stop()
    for sequence in (running, waiting):
        assert isinstance(harness.finish(sequence), EngineStopped)
