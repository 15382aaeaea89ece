"""Real models go on from state that was on disk as from state that they have just computed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.models.cache import QuantizedKVCache

from mlx_server.engine.kv_caches import KVCaches, materialise
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import ChatPrompt
from tests.engine_runs import (
    TIE,
    Answer,
    first_difference,
    make_runner,
    make_sequence,
    picture,
    run,
    run_alone,
    user,
)
from tests.kv_states import PLENTY, keys_of, make_tier
from tests.prefix_cache_books import check_books
from tests.test_kv_caches import feed

Load = Callable[[str], LoadedModel]
TOKENS = [10 + i % 40 for i in range(80)]
LONG = "once upon a time there was a box that nobody could open, and another one"


def prefilled(loaded: LoadedModel, num_tokens: int) -> KVCaches:
    caches = loaded.make_caches()
    feed(loaded, caches, TOKENS[: num_tokens // 2])
    feed(loaded, caches, TOKENS[num_tokens // 2 : num_tokens])
    materialise(caches)
    return caches


def disk_runner(loaded: LoadedModel, root: Path, *, cache_bytes: int = PLENTY) -> Runner:
    """A runner as after a restart: what it finds comes from the disk."""
    runner = make_runner(loaded, step_size=16, cache_bytes=cache_bytes)
    runner.prefix_cache = PrefixCache(cache_bytes, make_tier(root, model=loaded.id))
    return runner


def flush(runner: Runner) -> None:
    assert runner.prefix_cache._disk is not None
    assert runner.prefix_cache._disk._store.flush(10.0)


def check(loaded: LoadedModel, answer: Answer, prompt: ChatPrompt | str) -> None:
    gap = first_difference(answer, run_alone(loaded, make_sequence(prompt)))
    assert gap is None or gap < TIE


@pytest.mark.parametrize("num_tokens", [7, 32, 33, 64, 70])
def test_logits_behind_stored_state_are_those_of_a_fresh_prefill(
    tiny: LoadedModel, tmp_path: Path, num_tokens: int
) -> None:
    tier = make_tier(tmp_path)
    tier.insert(keys_of(TOKENS[:num_tokens]), prefilled(tiny, num_tokens), "")
    assert tier._store.flush(10.0)
    match = make_tier(tmp_path).match(keys_of(TOKENS), len(TOKENS), "")
    if match is None:
        assert tiny.id in ("llama", "qwen3_vl")
        assert num_tokens < 32
        return
    fresh = prefilled(tiny, match.num_tokens)
    for token_ids in ([60], [61], TOKENS[5:15], [62]):
        ours, theirs = (feed(tiny, caches, token_ids) for caches in (match.caches, fresh))
        assert np.array_equal(ours, theirs)


def test_b108_b110_answers_after_a_restart_are_those_of_a_fresh_server(
    tiny: LoadedModel, tmp_path: Path
) -> None:
    abandoned = disk_runner(tiny, tmp_path)
    sequence = make_sequence(LONG)
    for _ in range(2):
        abandoned.prefill(sequence)
    abandoned.drop(sequence)
    for prompt in (LONG, LONG, f"{LONG} and so on", LONG[:50]):
        flush(abandoned)
        runner = disk_runner(tiny, tmp_path)
        answer = run(runner, make_sequence(prompt))
        flush(runner)
        check(tiny, answer, prompt)
        check_books(runner.prefix_cache)
        if prompt == LONG:
            assert answer.num_cached_tokens > 0


@pytest.mark.parametrize("name", ["gemma3", "gemma3_window_8", "qwen3_vl"])
def test_b106_pictures_are_told_apart_on_disk(load_tiny: Load, tmp_path: Path, name: str) -> None:
    loaded = load_tiny(name)
    prompt = ChatPrompt((user(f"what color is it? {LONG}", num_images=1),))
    cached = []
    for color in ("red", "blue", "red"):
        runner = disk_runner(loaded, tmp_path)
        sequence = make_sequence(prompt, [picture(color)])
        answer = run(runner, sequence)
        flush(runner)
        gap = first_difference(answer, run_alone(loaded, make_sequence(prompt, [picture(color)])))
        assert gap is None or gap < TIE
        cached.append(answer.num_cached_tokens)
    assert cached[0] == 0
    assert cached[2] > cached[1]


def test_the_disk_alone_serves_when_there_is_no_memory_for_it(
    load_tiny: Load, tmp_path: Path
) -> None:
    loaded = load_tiny("llama")
    runner = disk_runner(loaded, tmp_path, cache_bytes=0)
    answers = [run(runner, make_sequence(LONG)) for _ in range(2)]
    for answer in answers:
        check(loaded, answer, LONG)
    assert [a.num_cached_tokens for a in answers] == [0, 64]
    assert len(runner.prefix_cache) == 0


def test_quantised_state_goes_on_as_it_was(load_tiny: Load, tmp_path: Path) -> None:
    loaded = load_tiny("llama")

    def caches_of(num_tokens: int) -> KVCaches:
        caches = loaded.make_caches()
        feed(loaded, caches, TOKENS[:num_tokens])
        # the heads of the tiny model are too narrow for groups of 64
        wide = [mx.concatenate([c.state[i]] * 4, axis=3) for c in caches for i in (0, 1)]
        quantised = QuantizedKVCache(group_size=64, bits=8)
        quantised.update_and_fetch(wide[0], wide[1])
        materialise([quantised])
        return [quantised]

    tier = make_tier(tmp_path)
    tier.insert(keys_of(TOKENS[:70]), caches_of(70), "q8")
    match = tier.match(keys_of(TOKENS), 80, "q8")
    assert match is not None
    fresh = caches_of(match.num_tokens)
    entry = mx.random.normal((1, 2, 3, 64))
    for ours, theirs in zip(match.caches, fresh, strict=True):
        one, two = ours.update_and_fetch(entry, entry), theirs.update_and_fetch(entry, entry)
        assert all(
            mx.array_equal(a, b).item()
            for a, b in zip((*one[0], *one[1]), (*two[0], *two[1]), strict=True)
        )
