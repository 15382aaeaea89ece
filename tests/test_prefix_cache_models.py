"""Whatever was asked before, an answer at temperature 0 is that of a fresh server.

Real models and their real caches: those that keep all positions, windows, recurrent state, images.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.media import LoadedImage
from mlx_server.engine.prompt import prepare
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import ChatPrompt, RawPrompt, SamplingParams, Sequence
from tests.engine_runs import (
    TIE,
    Answer,
    assistant,
    decode,
    first_difference,
    make_runner,
    make_sequence,
    picture,
    prefill,
    run,
    run_alone,
    start,
    system,
    user,
)
from tests.histories import History

Load = Callable[[str], LoadedModel]
LONG = "once upon a time there was a box that nobody could open"
NUM_ANSWERS = 6
VISION = ("gemma3", "gemma3_window_8", "glm4v", "qwen2_5_vl", "qwen3_vl")
WITH_CHECKPOINTS = ("gemma3_window_8", "qwen3_next")


def check(loaded: LoadedModel, answer: Answer, sequence: Sequence) -> float | None:
    """The answer is the fresh one; gives the gap of a tie in which they may part."""
    gap = first_difference(answer, run_alone(loaded, sequence))
    assert gap is None or gap < TIE
    return gap


def length_of(
    loaded: LoadedModel, prompt: ChatPrompt | RawPrompt, images: list[LoadedImage] | None = None
) -> int:
    return len(prepare(loaded, prompt, images or []))


def chat(*texts: str) -> ChatPrompt:
    """A system text, then user and assistant in turn."""
    turns = [user(t) if i % 2 == 0 else assistant(t) for i, t in enumerate(texts[1:])]
    return ChatPrompt((system(texts[0]), *turns))


def say_a(loaded: LoadedModel) -> SamplingParams:
    """Make every token the letter a, so that the answer is the same when it is tokenised again."""
    letter = loaded.tokenizer.backend_tokenizer.token_to_id("a")
    return SamplingParams(temperature=0.0, logit_bias={letter: 100.0})


@pytest.mark.parametrize(("step_size", "reads_ahead"), [(7, False), (64, True)])
def test_answers_after_any_history_are_those_of_a_fresh_runner(
    family: LoadedModel, step_size: int, reads_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlx_server.engine.runner.is_cpu", lambda: not reads_ahead)
    monkeypatch.setattr("mlx_server.engine.prefill.MIN_SPARED", 1)
    runner = make_runner(family, step_size=step_size)
    history = History(random.Random(f"{family.id} {step_size}"), family, runner)
    while len(history.done) < NUM_ANSWERS:
        history.step()
    history.finish()
    ties = [check(family, answer, ask.sequence()) for ask, answer in history.done]
    assert sum(gap is not None for gap in ties) <= 1, "so many ties are no accident"
    if family.is_warm_vision or not family.has_vision:
        num_warm = sum(answer.num_cached_tokens > 0 for _, answer in history.done)
        assert num_warm > NUM_ANSWERS // 3


def test_answers_stay_right_when_the_budget_holds_a_few_entries_only(load_tiny: Load) -> None:
    for name in ("llama", "qwen3_next"):
        loaded = load_tiny(name)
        runner = make_runner(loaded, step_size=16, cache_bytes=200_000)
        history = History(random.Random(5), loaded, runner)
        while len(history.done) < 4:
            history.step()
            assert runner.prefix_cache.num_bytes <= 200_000
        history.finish()
        for ask, answer in history.done:
            check(loaded, answer, ask.sequence())


@pytest.mark.parametrize("name", VISION)
def test_b106_another_picture_is_never_answered_with_the_first_one_s(
    load_tiny: Load, name: str
) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    prompt = ChatPrompt((user("what color is it?", num_images=1),))
    answers = {}
    for color in ("red", "blue", "red", "blue"):
        sequence = make_sequence(prompt, [picture(color)])
        answer = run(runner, sequence)
        check(loaded, answer, sequence)
        if color in answers:
            assert answer.num_cached_tokens == length_of(loaded, prompt, [picture(color)]) - 1
        else:
            first_image_token = prepare(loaded, prompt, [picture(color)]).token_ids.index(
                loaded.image_token_id or -1
            )
            assert answer.num_cached_tokens <= first_image_token
        answers[color] = answer
    numbers = [[entry.logprob for entry in a.logprobs[:1]] for a in answers.values()]
    assert numbers[0] != pytest.approx(numbers[1], abs=1e-4), "the model must see the color"


@pytest.mark.parametrize("name", VISION)
def test_b106_pictures_in_another_order_are_other_pictures(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    prompt = ChatPrompt((user("first", 1), assistant("ok"), user("second", 1)))
    for colors in (("red", "blue"), ("blue", "red"), ("red", "red"), ("red", "blue")):
        sequence = make_sequence(prompt, [picture(color) for color in colors])
        check(loaded, run(runner, sequence), sequence)


def test_b108_the_same_request_again_is_answered_the_same(family: LoadedModel) -> None:
    runner = make_runner(family, step_size=16)
    for prompt in (chat("be short", LONG), RawPrompt(LONG)):
        answers = [run(runner, make_sequence(prompt)) for _ in range(3)]
        for answer in answers:
            check(family, answer, make_sequence(prompt))
            assert len(answer.tokens) == len(answers[0].tokens) > 0
        # raw prompts get no checkpoint, and what their answers end with cannot be taken back
        if isinstance(prompt, ChatPrompt):
            assert [a.num_cached_tokens for a in answers[1:]] == [length_of(family, prompt) - 1] * 2


def test_b110_an_answer_cut_off_leaves_nothing_wrong_behind(family: LoadedModel) -> None:
    runner = make_runner(family, step_size=9)
    first, longer = chat("be short", LONG), chat("be short", LONG, "yes", "and then?")
    abandoned = make_sequence(first)
    start(runner, abandoned)
    for _ in range(3):
        decode(runner)
    runner.drop(abandoned)
    for prompt in (first, longer, first):
        sequence = make_sequence(prompt)
        answer = run(runner, sequence)
        check(family, answer, sequence)
        assert answer.num_cached_tokens > 0


def test_b110_a_prompt_cut_off_leaves_what_it_has_computed(family: LoadedModel) -> None:
    for num_chunks in range(5):
        runner = make_runner(family, step_size=9)
        abandoned = make_sequence(chat("be short", LONG))
        for _ in range(num_chunks):
            prefill(runner, abandoned)
        runner.drop(abandoned)
        sequence = make_sequence(chat("be short", LONG))
        answer = run(runner, sequence)
        check(family, answer, sequence)
        assert (answer.num_cached_tokens > 0) == (num_chunks > 0)


def test_b112_a_prompt_that_parts_behind_the_window_is_answered_as_fresh(load_tiny: Load) -> None:
    loaded = load_tiny("gemma3_window_8")
    runner = make_runner(loaded)
    for text in ("abcdefghijklmnopqrst", "abcdefghijklXYZ", "abcdefghijkl", "abcdefghijklmnopq"):
        sequence = make_sequence(RawPrompt(text))
        check(loaded, run(runner, sequence), sequence)
    for last in ("and what is in it?", "and who opens it?"):
        sequence = make_sequence(chat("be short", LONG, "yes", last))
        check(loaded, run(runner, sequence), sequence)


def test_the_next_turn_reuses_prompt_and_completion(tiny: LoadedModel) -> None:
    runner = make_runner(tiny, step_size=16)
    sampling = say_a(tiny)
    first = chat("be short", LONG)
    answer = run(runner, make_sequence(first, sampling=sampling, max_tokens=6))
    assert answer.text == "aaaaaa"
    second = make_sequence(chat("be short", LONG, answer.text, "and then?"))
    again = run(runner, second)
    assert again.num_cached_tokens == length_of(tiny, first) + 5
    check(tiny, again, second)


def test_the_next_turn_reuses_the_prompt_when_the_answer_was_changed(tiny: LoadedModel) -> None:
    runner = make_runner(tiny, step_size=16)
    first = chat("be short", LONG)
    run(runner, make_sequence(first, sampling=say_a(tiny), max_tokens=6))
    second = make_sequence(chat("be short", LONG, "no", "and then?"))
    again = run(runner, second)
    assert again.num_cached_tokens >= length_of(tiny, first) - 1
    check(tiny, again, second)


@pytest.mark.parametrize("name", WITH_CHECKPOINTS)
def test_an_edited_question_reuses_all_that_comes_before_it(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    run(runner, make_sequence(chat("be short", "hello, " + LONG, "yes", LONG)))
    edited = make_sequence(chat("be short", "hello, " + LONG, "yes", "tell me more"))
    answer = run(runner, edited)
    before = loaded.tokenizer.decode(
        prepare(loaded, edited.request.prompt, []).token_ids[: answer.num_cached_tokens]
    )
    assert before.endswith("user\n")
    assert "hello" in before
    check(loaded, answer, edited)


@pytest.mark.parametrize("name", WITH_CHECKPOINTS)
def test_another_conversation_reuses_the_system_prompt(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    lead = "you are a box. " * 3
    run(runner, make_sequence(chat(lead, "hello", "yes", LONG)))
    other = make_sequence(chat(lead, "something else"))
    answer = run(runner, other)
    assert answer.num_cached_tokens > len(lead) - 3
    check(loaded, answer, other)


@pytest.mark.parametrize("name", VISION)
def test_the_next_turn_reuses_the_picture(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    runner = make_runner(loaded, step_size=16)
    first = ChatPrompt((user("what is it?", 1),))
    pictures = [picture("red")]
    run(runner, make_sequence(first, pictures, sampling=say_a(loaded)))
    for more in ([], [picture("blue")]):
        turns = (*first.messages, assistant("a" * 8), user("and now?", len(more)))
        second = make_sequence(ChatPrompt(turns), [*pictures, *more])
        answer = run(runner, second)
        assert answer.num_cached_tokens >= length_of(loaded, first, pictures) + 7
        check(loaded, answer, second)


def cached_bytes(runner: Runner) -> int:
    return runner.prefix_cache.num_bytes


def test_after_a_failure_nothing_is_reused(load_tiny: Load) -> None:
    runner = make_runner(load_tiny("llama"))
    run(runner, make_sequence("hello"))
    assert cached_bytes(runner) > 0
    start(runner, make_sequence("another"))
    runner.reset()
    assert cached_bytes(runner) == 0
    assert runner.decode() == []
    assert run(runner, make_sequence("hello")).num_cached_tokens == 0
