"""Sequences have their memory before they begin, and the prefix cache what is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import FinishReason, RawPrompt, Sequence
from mlx_server.errors import InsufficientMemory
from tests.engine_runs import decode, make_sequence, run, start
from tests.scripted import Script, load_scripted
from tests.test_memory import make_memory

MOST_TOKENS = 99
CACHE_BYTES = 1 << 20


@pytest.fixture
def runner(script: Script, tmp_path: Path) -> Runner:
    loaded = load_scripted(tmp_path, script)
    memory = make_memory(101_000)
    assert memory.max_total_tokens() == MOST_TOKENS
    return Runner(
        loaded, prefill_step_size=16, prefix_cache=PrefixCache(CACHE_BYTES), memory=memory
    )


def ask(runner: Runner, max_tokens: int | None) -> Sequence:
    sequence = make_sequence(RawPrompt("abcdefghij"), max_tokens=max_tokens, top_logprobs=None)
    runner.prepare(sequence)
    return sequence


def test_one_for_whom_there_is_no_memory_waits_until_another_is_gone(runner: Runner) -> None:
    first, second = ask(runner, 80), ask(runner, 80)
    assert runner.reserve(first)
    assert not runner.reserve(second)
    runner.drop(first)
    assert runner.reserve(second)


def test_one_for_whom_there_never_will_be_memory_is_refused(runner: Runner) -> None:
    with pytest.raises(InsufficientMemory):
        ask(runner, MOST_TOKENS)


def test_an_answer_without_a_limit_ends_where_the_memory_does(
    runner: Runner, script: Script
) -> None:
    script.say(*["x"] * 500)
    answer = run(runner, ask(runner, None))
    assert answer.finish_reason is FinishReason.LENGTH
    assert 10 + answer.deltas[-1].num_completion_tokens == MOST_TOKENS
    assert runner.reserve(ask(runner, 80)), "what it had is given back"


def test_the_prefix_cache_gives_way_to_what_is_promised(runner: Runner, script: Script) -> None:
    script.say("short")
    run(runner, ask(runner, 5))
    assert len(runner.prefix_cache) == 1
    before = runner.prefix_cache.max_bytes
    sequence = ask(runner, 80)
    assert runner.reserve(sequence)
    assert runner.prefix_cache.max_bytes == runner.memory.room_for_prefix_cache() < before
    assert runner.prefix_cache.num_bytes <= runner.prefix_cache.max_bytes
    runner.drop(sequence)
    assert runner.prefix_cache.max_bytes == before


def test_room_is_not_made_of_what_is_about_to_be_used(runner: Runner, script: Script) -> None:
    script.say_only("x")
    history, other = "abcdefghij" * 3, "0123456789" * 3
    for text in (history, other):
        run(runner, make_sequence(RawPrompt(text), max_tokens=1))
    one = runner.prefix_cache.num_bytes // 2
    sequence = make_sequence(RawPrompt(history + "new"), max_tokens=1)
    runner.prepare(sequence)
    # there is room for one entry only from now on
    runner._max_cache_bytes = one
    assert runner.reserve(sequence)
    assert runner.num_left(sequence) == len("new")


def test_a_model_whose_rows_cannot_be_batched_takes_one_at_a_time(
    runner: Runner, script: Script
) -> None:
    script.say_only("xyz")
    object.__setattr__(runner.loaded, "can_batch", False)
    first, second = ask(runner, 3), ask(runner, 3)
    assert runner.reserve(first)
    assert not runner.reserve(second)
    assert run(runner, first).text == "xyz"
    assert runner.reserve(second)


def siblings(runner: Runner, n: int, max_tokens: int = 5) -> list[Sequence]:
    """The sequences of one request, whose prompt has ten tokens."""
    first = make_sequence(RawPrompt("abcdefghij"), max_tokens=max_tokens, top_logprobs=None, n=n)
    runner.prepare(first)
    others = [replace(first, uid=first.uid + 10_000 + i, index=i) for i in range(1, n)]
    return [first, *others]


def free(runner: Runner) -> int:
    return runner.memory.room_for_prefix_cache()


def test_a_start_that_answers_share_counts_until_the_last_has_taken_it(
    runner: Runner, script: Script
) -> None:
    script.say_only("xyz" * 9)
    everything = free(runner)
    alone = ask(runner, 5)
    assert runner.reserve(alone)
    row = everything - free(runner)
    runner.drop(alone)
    shared = runner.memory.start_bytes(10)
    first, second, third = siblings(runner, 3)
    assert runner.reserve(first)
    assert everything - free(runner) == row + shared
    start(runner, first)
    assert everything - free(runner) == row + shared
    start(runner, second)
    two = everything - free(runner) - shared
    start(runner, third)
    assert row < two < everything - free(runner) < two + row + shared
    for sequence in (first, second, third):
        runner.drop(sequence)
    assert free(runner) == everything


def test_a_start_whose_last_taker_leaves_counts_no_more(runner: Runner, script: Script) -> None:
    script.say_only("xyz" * 9)
    everything = free(runner)
    first, second = siblings(runner, 2)
    start(runner, first)
    with_start = free(runner)
    runner.drop(second)
    assert free(runner) == with_start + runner.memory.start_bytes(10)
    runner.drop(first)
    assert free(runner) == everything


def test_more_answers_than_can_ever_start_are_refused(runner: Runner) -> None:
    siblings(runner, 1, 80)
    with pytest.raises(InsufficientMemory, match="fewer answers"):
        siblings(runner, 2, 80)


def test_a_start_gives_way_to_one_that_could_else_never_begin(
    runner: Runner, script: Script
) -> None:
    script.say_only("xyz" * 9)
    first, second = siblings(runner, 2)
    start(runner, first)
    large = ask(runner, 85)
    assert not runner.reserve(large)
    decode(runner)
    runner.drop(first)
    assert runner.reserve(large)
    runner.drop(large)
    assert run(runner, second).text == "xyzxy"
