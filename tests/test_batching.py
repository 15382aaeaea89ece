"""Several sequences of one model at a time: what they share, and what they must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_server.engine.batch import RowBatch, RowStart
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import (
    ChatPrompt,
    Delta,
    Progress,
    SamplingParams,
    Sequence,
    Started,
)
from mlx_server.errors import GenerationFailed
from tests.engine_runs import (
    GREEDY,
    Answer,
    decode,
    first_difference,
    make_runner,
    make_sequence,
    picture,
    prefill,
    run,
    run_alone,
    run_together,
    start,
    system,
    user,
)
from tests.scripted import NOT_A_NUMBER, Script, load_scripted

Load = Callable[[str], LoadedModel]
AGENT = "You are an agent. You have tools. Think of what you need, then act, then look. " * 3
TASKS = ("count the ships", "name the sea", "draw a box", "say why")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma3_window_8", "qwen3_next", "qwen3_vl"])
def test_one_new_long_prefix_is_prefilled_once(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    prompts = [ChatPrompt((system(AGENT), user(task))) for task in TASKS]
    answers = run_together(runner, [make_sequence(prompt) for prompt in prompts])
    first, *others = answers.values()
    assert first.num_cached_tokens == 0
    assert all(
        o.started and o.num_cached_tokens > 0.7 * o.started.num_prompt_tokens for o in others
    )
    for sequence, answer in answers.items():
        alone = run_alone(loaded, make_sequence(sequence.request.prompt))
        assert answer.text == alone.text


@pytest.mark.parametrize("name", ["llama", "gemma3_window_8", "qwen3_next", "qwen3_vl"])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 26])
def test_the_answers_of_one_request_start_from_one_prefill(
    load_tiny: Load, name: str, cache_bytes: int
) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16, cache_bytes=cache_bytes)
    first = make_sequence(AGENT, sampling=SamplingParams(temperature=1.0), n=3)
    siblings = [Sequence(-i, first.request, i, "m", seed=i, deadline=1e12) for i in (1, 2)]
    assert runner.num_left(prepared(runner, first)) > 16
    answers = {first: Answer(start(runner, first))}
    for sibling in siblings:
        sibling.prompt = first.prompt
        assert runner.num_left(sibling) == 0
        assert isinstance(prefill(runner, sibling), Started), "there is nothing to run"
        answers[sibling] = Answer()
    while batch := decode(runner):
        for sequence, delta in batch:
            answers[sequence].deltas.append(delta)
    texts = [answer.text for answer in answers.values()]
    assert len(set(texts)) > 1, "every one has its own random stream"
    for sequence, text in zip(answers, texts, strict=True):
        twin = make_sequence(AGENT, sampling=SamplingParams(temperature=1.0))
        twin.seed = sequence.seed
        assert run_alone(loaded, twin).text == text


def prepared(runner: Runner, sequence: Sequence) -> Sequence:
    runner.prepare(sequence)
    return sequence


def test_b047_siblings_that_do_not_come_are_not_waited_for(load_tiny: Load) -> None:
    runner = make_runner(load_tiny("llama"))
    first = make_sequence("hello", n=2)
    start(runner, first)
    sibling = Sequence(-1, first.request, 1, "m", seed=1, deadline=1e12, prompt=first.prompt)
    runner.drop(sibling)
    assert len(runner._shared_starts) == 0


MIXED = [
    GREEDY,
    SamplingParams(temperature=1.5, seed=1),
    SamplingParams(temperature=1.0, top_p=0.8, seed=2),
    SamplingParams(temperature=0.7, top_k=20, seed=3),
    SamplingParams(temperature=1.2, min_p=0.05, seed=4),
    SamplingParams(temperature=0.0, repetition_penalty=1.3),
    SamplingParams(temperature=0.9, logit_bias={5: 4.0}, presence_penalty=1.0, seed=5),
]


@pytest.mark.parametrize("name", ["llama", "gemma3_window_8", "qwen3_next"])
def test_every_row_has_its_own_sampler_and_seed(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    made = [make_sequence("hello there", sampling=s, max_tokens=12) for s in MIXED]
    for i, sequence in enumerate(made):
        sequence.seed = 100 + i
    answers = run_together(make_runner(loaded), made)
    for i, answer in enumerate(answers.values()):
        twin = make_sequence("hello there", sampling=MIXED[i], max_tokens=12)
        twin.seed = 100 + i
        assert answer.text == run_alone(loaded, twin).text, MIXED[i]


def test_pictures_and_text_decode_together(load_tiny: Load) -> None:
    loaded = load_tiny("qwen3_vl")
    asked = [
        ("what is this?", [picture("red")]),
        ("hello", []),
        ("and these?", [picture("blue"), picture("green", 96)]),
    ]

    def sequences() -> list[Sequence]:
        return [
            make_sequence(ChatPrompt((user(text, len(pictures)),)), pictures, max_tokens=12)
            for text, pictures in asked
        ]

    answers = run_together(make_runner(loaded), sequences())
    alone = [run_alone(loaded, sequence).text for sequence in sequences()]
    assert [answer.text for answer in answers.values()] == alone


@pytest.mark.parametrize("name", ["hunyuan_vl", "mllama"])
def test_rows_of_a_model_that_places_them_all_alike_decode_one_after_the_other(
    load_tiny: Load, name: str
) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    first, second = make_sequence("hi"), make_sequence(AGENT)
    answer = Answer(start(runner, first))
    runner.prepare(second)
    assert not runner.reserve(second)
    while batch := decode(runner):
        answer.deltas += [delta for _, delta in batch]
    assert first_difference(answer, run_alone(loaded, make_sequence("hi"))) is None
    assert runner.reserve(second)
    assert first_difference(run(runner, second), run_alone(loaded, make_sequence(AGENT))) is None


@pytest.fixture
def scripted(script: Script, tmp_path: Path) -> Runner:
    loaded = load_scripted(tmp_path, script)
    return make_runner(loaded, step_size=4)


def test_a_row_whose_logits_are_no_numbers_ends_alone(scripted: Runner, script: Script) -> None:
    script.say("a", "b", NOT_A_NUMBER)
    script.say(*"abcdef")
    broken, fine = make_sequence("one"), make_sequence("two")
    for sequence in (broken, fine):
        start(scripted, sequence)
    said: dict[Sequence, list[object]] = {s: [d] for s, d in decode(scripted)}
    for _ in range(3):
        for sequence, event in scripted.decode():
            said[sequence].append(event)
        scripted.settle()
    assert [type(event) for event in said[broken]] == [Delta, Delta, GenerationFailed]
    assert [d.text for d in said[fine] if isinstance(d, Delta)] == list("abcd")
    keys = [entry.keys for entry in scripted.prefix_cache._entries.values()]
    assert all(len(k) <= len(broken.prompt) for k in keys), "nothing broken is kept"


def test_a_prefill_that_fails_costs_only_its_own_sequence(scripted: Runner, script: Script) -> None:
    script.say(*"abcdef")
    script.say(RuntimeError("boom"))
    script.say("fine")
    fine, failing = make_sequence("one"), make_sequence("two")
    start(scripted, fine)
    with pytest.raises(RuntimeError, match="boom"):
        start(scripted, failing)
    scripted.forget(failing)
    assert start(scripted, make_sequence("three")).num_prompt_tokens > 0
    assert [d.text for _, d in decode(scripted)] == ["a", "fine"]
    assert [d.text for _, d in decode(scripted)][:1] == ["b"]


def test_no_checkpoint_of_a_prompt_that_comes_to_no_numbers_is_kept(
    load_tiny: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(load_tiny("gemma3_window_8"), step_size=16)
    whole = RowBatch.start

    def broken(batch: RowBatch, prompt: Any) -> RowStart:
        return replace(whole(batch, prompt), logits=mx.full((1, 8), mx.nan))

    monkeypatch.setattr(RowBatch, "start", broken)
    with pytest.raises(GenerationFailed):
        start(runner, make_sequence(AGENT))
    assert len(runner.prefix_cache) == 0


def test_the_last_token_of_all_needs_no_further_step(scripted: Runner, script: Script) -> None:
    script.say(*"abcdef")
    start(scripted, make_sequence("one", max_tokens=3))
    for _ in range(3):
        decode(scripted)
    assert script.num_tokens == 2, "the first comes with the prompt"
    script.say(*"xyz")
    assert start(scripted, make_sequence("two", max_tokens=1)).num_prompt_tokens > 0
    assert [d.text for _, d in decode(scripted)] == ["x"]
    assert script.num_tokens == 2


def test_a_prompt_that_was_passed_by_its_equal_leaves_nothing(
    scripted: Runner, script: Script
) -> None:
    script.say_only("xyz")
    long, equal = (make_sequence("abcdefghij" * 4, n=n) for n in (2, 1))
    scripted.prepare(long)
    sibling = Sequence(-1, long.request, 1, "m", seed=1, deadline=1e12, prompt=long.prompt)
    assert scripted.reserve(long)
    assert isinstance(scripted.prefill(long, 4).event, Progress)
    run(scripted, equal)
    assert scripted.reserve(sibling)
    for sequence in (sibling, long):
        assert isinstance(scripted.prefill(sequence).event, Started)
        scripted.join(sequence)
    assert scripted._prefills == {}
