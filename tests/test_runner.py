"""One step at a time on the device: prompts, tokens, ends, and what the next request finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.runner import Runner
from mlx_server.engine.sampler_row import SamplingDefaults
from mlx_server.engine.sequence import (
    ChatPrompt,
    Delta,
    FinishReason,
    Progress,
    RawPrompt,
    SamplingParams,
    Sequence,
    Started,
)
from mlx_server.errors import ContextLengthExceeded, InvalidRequest
from tests.engine_runs import decode, make_runner, make_sequence, prefill, run, start, user
from tests.scripted import Script, load_scripted

Load = Callable[[str], LoadedModel]


@pytest.fixture
def loaded(script: Script, tmp_path: Path) -> LoadedModel:
    return load_scripted(tmp_path, script)


@pytest.fixture
def runner(loaded: LoadedModel) -> Runner:
    return make_runner(loaded, step_size=4)


def ask(text: str = "hi", **fields: object) -> Sequence:
    return make_sequence(RawPrompt(text), top_logprobs=None, **fields)  # type: ignore[arg-type]


def decode_all(runner: Runner, num_steps: int = 100) -> dict[int, list[Delta]]:
    """The deltas by uid until nothing runs."""
    deltas: dict[int, list[Delta]] = {}
    for _ in range(num_steps):
        step = decode(runner)
        if not step:
            return deltas
        for sequence, delta in step:
            deltas.setdefault(sequence.uid, []).append(delta)
    raise AssertionError("it never ends")


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def test_a_prompt_runs_in_chunks_then_the_answer_token_by_token(
    runner: Runner, script: Script
) -> None:
    script.say("one ", "two")
    sequence = ask("abcdefghij")
    assert prefill(runner, sequence) == Progress("prefill", 4, 10)
    assert prefill(runner, sequence) == Progress("prefill", 8, 10)
    assert prefill(runner, sequence) == Started(
        model="m", num_prompt_tokens=10, num_cached_tokens=0, tool_format="json_tools"
    )
    assert [delta for _, delta in decode(runner)] == [Delta(0, "one ", 1)]
    assert [delta for _, delta in decode(runner)] == [Delta(0, "two", 2)]
    assert [d for _, d in decode(runner)] == [Delta(0, "", 3, (), FinishReason.STOP)]
    assert decode(runner) == []


def test_the_prompt_s_text_comes_only_for_an_echo(runner: Runner) -> None:
    assert start(runner, ask("abc", echo=True)).prompt_text == "abc"
    assert start(runner, ask("abc")).prompt_text is None


def test_b070_sequences_that_run_together_answer_as_alone(runner: Runner, script: Script) -> None:
    for answer in (["a"] * 7, ["b"] * 3, ["c"] * 5):
        script.say(*answer)
    sequences = [ask(text) for text in ("one", "two", "three and more")]
    for sequence in sequences:
        start(runner, sequence)
    deltas = decode_all(runner)
    assert [text_of(deltas[s.uid]) for s in sequences] == ["a" * 7, "b" * 3, "c" * 5]
    for sequence in sequences:
        counts = [delta.num_completion_tokens for delta in deltas[sequence.uid]]
        assert counts == list(range(1, len(counts) + 1))


def test_a_sequence_may_begin_while_others_decode(runner: Runner, script: Script) -> None:
    script.say(*"abcdefgh")
    script.say(*"xyz")
    first, second = ask("one"), ask("abcdefghij")
    start(runner, first)
    deltas: dict[int, list[Delta]] = {}
    is_started = False
    while not is_started:
        is_started = isinstance(prefill(runner, second), Started)
        for sequence, delta in decode(runner):
            deltas.setdefault(sequence.uid, []).append(delta)
    for uid, more in decode_all(runner).items():
        deltas.setdefault(uid, []).extend(more)
    assert text_of(deltas[first.uid]) == "abcdefgh"
    assert text_of(deltas[second.uid]) == "xyz"


def test_b041_the_context_bounds_the_answer(loaded: LoadedModel, script: Script) -> None:
    script.say(*["x"] * 100)
    small = replace(loaded, context_length=20)
    for limit in (None, 10**9):
        answer = run(make_runner(small), ask("a" * 15, max_tokens=limit))
        assert answer.text == "x" * 5
        assert answer.finish_reason is FinishReason.LENGTH
    assert run(make_runner(small), ask("a" * 15, max_tokens=2)).text == "xx"
    assert run(make_runner(small), ask("a" * 19, max_tokens=9)).text == "x"


def test_a_prompt_that_cannot_be_built_is_refused_and_costs_nobody_anything(
    runner: Runner, script: Script
) -> None:
    script.say(*"abcd")
    running = ask()
    start(runner, running)
    with pytest.raises(ContextLengthExceeded):
        prefill(runner, ask("a" * 10_000))
    with pytest.raises(InvalidRequest):
        prefill(runner, make_sequence(RawPrompt((10**9,))))
    assert text_of(decode_all(runner)[running.uid]) == "abcd"


def test_what_a_failed_step_leaves_is_thrown_away_by_a_reset(
    runner: Runner, script: Script
) -> None:
    script.say(RuntimeError("prefill"))
    script.say("a", RuntimeError("decode"))
    script.say("fine")
    with pytest.raises(RuntimeError, match="prefill"):
        start(runner, ask("abc"))
    runner.reset()
    start(runner, ask("abc"))
    with pytest.raises(RuntimeError, match="decode"):
        decode_all(runner)
    runner.reset()
    answer = run(runner, ask("abc"))
    assert answer.text == "fine"
    assert answer.num_cached_tokens == 0


def test_a_dropped_sequence_says_nothing_more_and_the_others_go_on(
    runner: Runner, script: Script
) -> None:
    script.say(*"aaaaaaaa")
    script.say(*"bbbb")
    first, second = ask("one"), ask("two")
    start(runner, first)
    start(runner, second)
    decode(runner)
    runner.drop(first)
    deltas = decode_all(runner)
    assert list(deltas) == [second.uid]
    assert text_of(deltas[second.uid]) == "bbb"


@pytest.mark.parametrize("num_chunks", [0, 1, 2])
def test_a_prompt_dropped_halfway_makes_room_for_the_next(
    runner: Runner, script: Script, num_chunks: int
) -> None:
    script.say("fine")
    abandoned = ask("abcdefghij")
    for _ in range(num_chunks):
        prefill(runner, abandoned)
    runner.drop(abandoned)
    answer = run(runner, ask("abcdefghij"))
    assert answer.text == "fine"
    assert answer.num_cached_tokens == 4 * num_chunks


def test_dropping_what_does_not_run_is_harmless(runner: Runner, script: Script) -> None:
    script.say("fine")
    stranger, sequence = ask(), ask()
    runner.drop(stranger)
    answer = run(runner, sequence)
    runner.drop(sequence)
    assert answer.text == "fine"


def test_a_sequence_cut_short_ends_with_what_it_has(runner: Runner, script: Script) -> None:
    script.say("a", "ST", "c")
    sequence = ask(stop=("STOP",))
    start(runner, sequence)
    decode(runner)
    decode(runner)
    assert runner.cut(sequence) == Delta(0, "ST", 2, (), FinishReason.LENGTH)
    assert decode(runner) == []


def test_a_sequence_may_be_cut_at_its_first_token(runner: Runner, script: Script) -> None:
    script.say("a")
    sequence = ask()
    start(runner, sequence)
    assert runner.cut(sequence) == Delta(0, "", 1, (), FinishReason.LENGTH)
    assert runner.decode() == []


def test_prompt_and_completion_are_kept_for_the_next_turn(runner: Runner, script: Script) -> None:
    script.say(*"xyz")
    run(runner, ask("abc"))
    # the end token was computed as well, but the next prompt has no such token
    assert start(runner, ask("abcxyzdef")).num_cached_tokens == len("abcxyz")


def test_silence_takes_the_checkpoint_s_own_sampling(loaded: LoadedModel, script: Script) -> None:
    # the runner-up of the scripted model is ten below the best
    script.say(*"aaaaaaaa")
    hot = replace(loaded, defaults=SamplingDefaults(temperature=50.0, top_k=2))
    silent = SamplingParams(seed=3)
    assert set(run(make_runner(hot), ask(sampling=silent)).text) == {"a", "b"}
    loud = SamplingParams(temperature=0.0, seed=3)
    assert run(make_runner(hot), ask(sampling=loud)).text == "a" * 8


def test_b045_a_seed_says_the_same_again(load_tiny: Load) -> None:
    runner = make_runner(load_tiny("llama"))

    def say(seed: int) -> list[bytes]:
        sampling = SamplingParams(temperature=1.5, seed=seed)
        return run(runner, make_sequence("hello", sampling=sampling, max_tokens=12)).tokens

    first = say(1)
    assert say(2) != first
    assert say(1) == first


def test_b056_all_end_tokens_of_config_and_tokenizer_end_an_answer(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    assert loaded.stop_token_ids == {0, 2}
    for token_id in loaded.stop_token_ids:
        forced = SamplingParams(temperature=0.0, logit_bias={token_id: 100.0})
        answer = run(make_runner(loaded), make_sequence("hello", sampling=forced))
        assert (answer.text, answer.finish_reason) == ("", FinishReason.STOP)


def test_chats_are_rendered_with_the_model_s_template(runner: Runner, script: Script) -> None:
    script.say("hello")
    sequence = make_sequence(ChatPrompt((user("hi"),)), echo=True)
    text = start(runner, sequence).prompt_text
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
