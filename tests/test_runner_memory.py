"""Sequences have their memory before they begin, and the prefix cache what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import FinishReason, RawPrompt, Sequence
from mlx_server.errors import InsufficientMemory
from tests.engine_runs import make_sequence, run
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
