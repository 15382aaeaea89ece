"""How likely a prompt's own tokens are: the same in pieces of any size, and in any company."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_server.engine import prompt_scores
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.memory import Scratch
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.prompt import PreparedPrompt, prepare
from mlx_server.engine.prompt_scores import PromptScores
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import (
    Delta,
    FinishReason,
    PromptLogprobs,
    RawPrompt,
    Sequence,
    Started,
)
from mlx_server.errors import GenerationFailed, InsufficientMemory, UnsupportedParameter
from tests.engine_runs import decode, make_runner, make_sequence, prefill, run, run_alone, start
from tests.scripted import Script, load_scripted
from tests.test_memory import NOTHING, make_memory

Load = Callable[[str], LoadedModel]
IDS = tuple(range(60, 74))


def scored(content: str | tuple[int, ...] = IDS, **fields: Any) -> Sequence:
    wanted = {"echo": True, "prompt_logprobs": True, "max_tokens": 2, **fields}
    return make_sequence(RawPrompt(content), **wanted)


def plain(content: str | tuple[int, ...] = IDS) -> Sequence:
    return make_sequence(RawPrompt(content), top_logprobs=None, max_tokens=2)


def scores_of(loaded: LoadedModel, sequence: Sequence, step_size: int = 512) -> PromptLogprobs:
    answer = run(make_runner(loaded, step_size=step_size), sequence)
    assert answer.started is not None
    assert answer.started.prompt_logprobs is not None
    return answer.started.prompt_logprobs


def logprobs_of(scores: PromptLogprobs) -> list[float]:
    return [entry.logprob for entry in scores.others]


def test_every_token_is_as_likely_as_the_model_says_behind_those_before_it(
    family: LoadedModel,
) -> None:
    want, likeliest = [], []
    for place in range(1, len(IDS)):
        before = make_sequence(RawPrompt(IDS[:place]), max_tokens=1, top_logprobs=family.vocab_size)
        (entry,) = run_alone(family, before).logprobs
        text = family.token_text.token_bytes(IDS[place])
        want.append(next(top.logprob for top in entry.top if top.token_bytes == text))
        likeliest.append(entry.top[0].logprob)
    scores = scores_of(family, scored(top_logprobs=1))
    assert logprobs_of(scores) == pytest.approx(want, abs=2e-3)
    assert [entry.top[0].logprob for entry in scores.others] == pytest.approx(likeliest, abs=2e-3)
    assert scores.first == family.token_text.token_bytes(IDS[0])


@pytest.mark.parametrize("step_size", [1, 4, 7])
@pytest.mark.parametrize("piece", [1, 3, 48])
def test_pieces_of_any_size_give_the_same_logprobs(
    tiny: LoadedModel, step_size: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = scores_of(tiny, scored())
    monkeypatch.setattr("mlx_server.engine.prefill.SCORED_PIECE", piece)
    monkeypatch.setattr(prompt_scores, "SCORED_ROWS", 2)
    found = scores_of(tiny, scored(), step_size)
    assert logprobs_of(found) == pytest.approx(logprobs_of(want), abs=2e-3)
    assert [entry.token_bytes for entry in found.others] == [
        entry.token_bytes for entry in want.others
    ]


def test_what_was_asked_of_a_prompt_s_tokens_is_what_there_is(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    assert {len(entry.top) for entry in scores_of(loaded, scored(top_logprobs=3)).others} == {3}
    assert {len(entry.top) for entry in scores_of(loaded, scored(top_logprobs=0)).others} == {0}
    assert scores_of(loaded, scored((5,))).others == ()
    answer = run(make_runner(loaded), make_sequence(RawPrompt(IDS), echo=True))
    assert answer.started is not None
    assert answer.started.prompt_logprobs is None


def test_a_likeliest_token_is_never_more_than_certain(load_tiny: Load) -> None:
    for entry in scores_of(load_tiny("llama"), scored(top_logprobs=5)).others:
        assert max(entry.logprob, *(top.logprob for top in entry.top)) <= 0.0


def test_a_prompt_is_scored_from_its_beginning_though_its_state_is_kept(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    ids = tuple(range(60, 160))
    want = scores_of(loaded, scored(ids))
    runner = make_runner(loaded)
    run(runner, plain(ids))
    answer = run(runner, scored(ids))
    assert answer.num_cached_tokens == 0
    assert answer.started is not None
    assert answer.started.prompt_logprobs is not None
    assert logprobs_of(answer.started.prompt_logprobs) == pytest.approx(logprobs_of(want), abs=2e-3)


def test_the_state_of_a_scored_prompt_serves_the_next_one(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    ids = tuple(range(60, 160))
    fresh = run_alone(loaded, plain(ids))
    runner = make_runner(loaded)
    run(runner, scored(ids))
    answer = run(runner, plain(ids))
    assert answer.num_cached_tokens == len(ids) - 1
    assert answer.text == fresh.text


def test_neither_waits_for_state_nor_counts_on_it(load_tiny: Load) -> None:
    runner = make_runner(load_tiny("llama"))
    run(runner, plain())
    first, second = plain((*IDS, *IDS, *IDS)), scored((*IDS, *IDS, *IDS))
    for sequence in (first, second):
        runner.prepare(sequence)
    assert runner.num_left(second) == 3 * len(IDS)
    assert not runner.is_shared(second, first)


def test_those_who_decode_meanwhile_answer_as_alone(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    want = run_alone(loaded, make_sequence(RawPrompt("one")))
    runner = make_runner(loaded, step_size=3)
    running, sequence = make_sequence(RawPrompt("one")), scored()
    start(runner, running)
    text, is_started = "", False
    for _ in range(40):
        if not is_started:
            is_started = isinstance(prefill(runner, sequence), Started)
        text += "".join(delta.text for s, delta in decode(runner) if s is running)
    assert is_started
    assert text == want.text


@pytest.fixture
def scripted(script: Script, tmp_path: Path) -> LoadedModel:
    script.say("one")
    return load_scripted(tmp_path, script)


def test_several_answers_share_the_logprobs_of_their_prompt(scripted: LoadedModel) -> None:
    runner = make_runner(scripted, step_size=4)
    first = scored("abcdef", n=2)
    second = Sequence(first.uid + 100_000, first.request, 1, "m", 0, deadline=math.inf)
    runner.prepare(first)
    second.prompt = first.prompt
    starts = [start(runner, sequence) for sequence in (first, second)]
    assert starts[0].prompt_logprobs is not None
    assert starts[0].prompt_logprobs is starts[1].prompt_logprobs
    assert len(starts[0].prompt_logprobs.others) == 5


def test_an_answer_without_a_token_ends_where_it_begins(
    scripted: LoadedModel, script: Script
) -> None:
    runner = make_runner(scripted, step_size=4)
    sequence = scored("abcdef", max_tokens=0)
    answer = run(runner, sequence)
    assert answer.deltas == [Delta(0, "", 0, finish_reason=FinishReason.LENGTH)]
    assert script.num_tokens == 0
    assert runner.memory.num_rows == 0
    assert not runner._shared_starts
    assert decode(runner) == []


def test_a_model_that_must_see_a_prompt_whole_gives_no_logprobs_of_it(
    scripted: LoadedModel,
) -> None:
    scripted.model.no_chunked_prefill = True
    runner = make_runner(scripted)
    with pytest.raises(UnsupportedParameter) as raised:
        runner.prepare(scored("abc"))
    assert raised.value.param == "echo"
    runner.prepare(plain("abc"))


def test_no_more_logits_are_there_at_a_time_than_the_books_say(
    scripted: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    read = PromptScores.read

    def spy(self: PromptScores) -> None:
        assert self._logits is not None
        seen.append(self._logits.shape[0])
        read(self)

    monkeypatch.setattr(PromptScores, "read", spy)
    run(make_runner(scripted), scored("a" * 200))
    assert max(seen) == prompt_scores.SCORED_PIECE
    assert sum(seen) == 199


def test_memory_for_the_logprobs_is_promised_before_they_are_made(scripted: LoadedModel) -> None:
    scratch = Scratch(replace(NOTHING, vocab_size=30), chunk=0, has_scores=False)
    memory = make_memory(101_000, scratch=scratch)
    runner = Runner(
        scripted, prefill_step_size=16, prefix_cache=PrefixCache(1 << 20), memory=memory
    )
    prompt = "a" * (memory.max_total_tokens() - 10)
    runner.prepare(plain(prompt))
    with pytest.raises(InsufficientMemory):
        runner.prepare(scored(prompt))


class NoNumbers:
    """A language model that has broken."""

    def __call__(self, inputs: mx.array, **_: Any) -> mx.array:
        return mx.full((1, inputs.shape[1], 300), mx.nan)


def test_logits_that_are_no_numbers_are_noticed(scripted: LoadedModel) -> None:
    prompt = replace(prepare(scripted, RawPrompt("abc"), []), top_logprobs=1)
    scores = with_model(scripted, NoNumbers(), prompt)
    scores(mx.array([prompt.token_ids[:2]]))
    scores.read()
    assert scores.is_broken


def test_a_prompt_whose_logits_are_no_numbers_fails_and_leaves_nothing(
    scripted: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(scripted)
    monkeypatch.setattr("mlx_server.engine.prefill.Prefill.is_broken", True)
    with pytest.raises(GenerationFailed):
        start(runner, scored("abcdef"))
    assert len(runner.prefix_cache) == 0


def with_model(loaded: LoadedModel, language_model: Any, prompt: PreparedPrompt) -> PromptScores:
    loaded.model.language_model = language_model
    return PromptScores(loaded, prompt)
