"""KV state can be copied, taken back and taken apart without changing what it says."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from mlx.utils import tree_flatten
from mlx_vlm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from mlx_server.engine.batch import RowBatch
from mlx_server.engine.kv_caches import (
    KVCaches,
    can_be_batched,
    compact,
    compact_bytes,
    extract,
    fork,
    is_trimmable,
    keep_all_positions,
    leaves,
    materialise,
    num_bytes,
    trim,
)
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prefix_cache import PrefixCache
from tests.test_batch import join, prompt_of

Load = Callable[[str], LoadedModel]
TOKENS = [10 + i % 40 for i in range(30)]
# MLX rather keeps a buffer that is larger by so much than to copy what is needed of it
SHARED_BYTES = 16 << 10
TEXT_MODELS = ("llama", "gemma3", "gemma3_window_8", "qwen3_next", "falcon_h1")


def feed(loaded: LoadedModel, caches: KVCaches, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """The logits behind the tokens, which `caches` hold from then on."""
    # models that shift positions behind pictures keep the last shift unless they are told another
    places_pictures = hasattr(loaded.language_model, "get_rope_index")
    shift = {"rope_deltas": mx.zeros((1, 1), dtype=mx.int32)} if places_pictures else {}
    output = loaded.language_model(mx.array([token_ids]), cache=caches, **shift)
    return np.array(output.logits[0, -1].astype(mx.float32))


def filled(loaded: LoadedModel, token_ids: list[int]) -> KVCaches:
    caches = loaded.make_caches()
    feed(loaded, caches, token_ids)
    materialise(caches)
    return caches


def contents(caches: KVCaches) -> list[npt.NDArray[np.float32]]:
    return [np.array(array) for _, array in tree_flatten([cache.state for cache in caches])]


def same(left: KVCaches, right: list[npt.NDArray[np.float32]]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(contents(left), right, strict=True))


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_a_fork_goes_its_own_way(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    caches = filled(loaded, TOKENS[:20])
    before = contents(caches)
    copy = fork(caches)
    assert same(copy, before)
    for token_id in TOKENS[20:24]:
        feed(loaded, copy, [token_id])
    feed(loaded, copy, TOKENS[24:])
    assert same(caches, before)
    assert not any(map(np.array_equal, contents(copy), before))
    assert np.allclose(
        feed(loaded, caches, TOKENS[20:]), feed(loaded, filled(loaded, TOKENS[:20]), TOKENS[20:])
    )


@pytest.mark.parametrize(
    ("name", "num_tokens", "expected"),
    [
        ("llama", 1, True),
        ("llama", 30, True),
        ("gemma3", 30, True),
        ("gemma3_window_8", 7, True),
        ("gemma3_window_8", 8, False),
        ("gemma3_window_8", 9, False),
        ("gemma3_window_8", 30, False),
        ("qwen3_next", 1, False),
        ("qwen3_next", 30, False),
        ("falcon_h1", 1, False),
    ],
)
def test_only_state_that_keeps_all_positions_can_go_back(
    load_tiny: Load, name: str, num_tokens: int, expected: bool
) -> None:
    loaded = load_tiny(name)
    assert is_trimmable(filled(loaded, TOKENS[:num_tokens])) is expected


@pytest.mark.parametrize(
    ("name", "num_tokens"), [("llama", 30), ("gemma3", 30), ("gemma3_window_8", 7)]
)
@pytest.mark.parametrize("num_taken_back", [0, 1, 5])
def test_what_was_taken_back_was_never_there(
    load_tiny: Load, name: str, num_tokens: int, num_taken_back: int
) -> None:
    loaded = load_tiny(name)
    rest = num_tokens - num_taken_back
    caches = fork(filled(loaded, TOKENS[:num_tokens]))
    trim(caches, num_taken_back)
    assert {cache.offset for cache in caches} == {rest}
    other = [60, 61, 62, 63, 64, 65]
    fresh = filled(loaded, TOKENS[:rest])
    for token_id in other[:2]:
        one, two = feed(loaded, caches, [token_id]), feed(loaded, fresh, [token_id])
        assert np.allclose(one, two, atol=1e-4)
    assert np.allclose(feed(loaded, caches, other), feed(loaded, fresh, other), atol=1e-4)


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_bytes_are_those_of_all_arrays(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    caches = filled(loaded, TOKENS)
    arrays = [
        array
        for cache in leaves(caches)
        for array in ((cache.keys, cache.values) if hasattr(cache, "keys") else cache.state)
    ]
    assert num_bytes(caches) == sum(array.nbytes for array in arrays) > 0
    assert num_bytes(loaded.make_caches()) == 0


@pytest.mark.parametrize("name", TEXT_MODELS)
def test_the_caches_of_one_sequence_are_those_of_its_only_row(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    caches = filled(loaded, TOKENS)
    assert same(extract(caches, 0), contents(caches))


def entry(*values: float) -> mx.array:
    return mx.array(values)[None, None, :, None]


def fed(*caches: Any, num_tokens: int = 5) -> KVCaches:
    """Caches of kinds with keys, as one prompt of 0, 1, 2, ... leaves them."""
    for cache in leaves(caches):
        cache.update_and_fetch(entry(*range(num_tokens)), entry(*range(num_tokens)))
    return list(caches)


def test_lists_of_caches_are_taken_back_as_a_whole() -> None:
    caches = fed(CacheList(KVCache(), CacheList(KVCache())), KVCache())
    assert keep_all_positions(caches)
    assert is_trimmable(caches)
    trim(caches, 2)
    for cache in leaves(caches):
        assert cache.offset == 3
        assert cache.keys.flatten().tolist() == [0, 1, 2], "the tail takes memory"


@pytest.mark.parametrize(
    "cache", [ChunkedKVCache(8), CacheList(KVCache(), ChunkedKVCache(8))], ids=["alone", "in_list"]
)
def test_kinds_that_let_go_of_their_front_cannot_go_back(cache: Any) -> None:
    assert cache.is_trimmable(), "mlx_vlm says so"
    assert not is_trimmable(fed(cache))
    assert not keep_all_positions([cache])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (KVCache, True),
        (lambda: RotatingKVCache(8), True),
        (lambda: ArraysCache(2), True),
        (lambda: CacheList(KVCache(), ArraysCache(2)), True),
        (lambda: ChunkedKVCache(8), False),
        (lambda: CacheList(KVCache(), ChunkedKVCache(8)), False),
        (lambda: RotatingKVCache(8, keep=4), False),
    ],
)
def test_only_kinds_whose_rows_can_be_joined_can_be_batched(
    kind: Callable[[], Any], expected: bool
) -> None:
    assert can_be_batched([KVCache(), kind()]) is expected


def test_a_side_cache_that_was_never_filled_leaves_a_batch_empty() -> None:
    rows = [CacheList(*fed(KVCache(), num_tokens=n), KVCache()) for n in (5, 3)]
    (left,) = extract([CacheList.merge(rows)], 1)
    used, unused = left.caches
    assert used.keys.flatten().tolist() == [0, 1, 2]
    assert unused.empty()


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1"])
def test_a_row_that_leaves_a_batch_holds_no_memory_of_the_others(
    load_tiny: Load, name: str
) -> None:
    loaded = load_tiny(name)
    prompt = prompt_of(loaded, "hello")
    join(loaded, RowBatch(loaded.language_model), 0, prompt)
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    batch = RowBatch(loaded.language_model)
    for uid in range(32):
        join(loaded, batch, uid, prompt)
    caches = batch.release([3])[0]
    materialise(caches)
    del batch
    gc.collect()
    mx.clear_cache()
    held = mx.get_active_memory() - before
    assert held < num_bytes(caches) + len(contents(caches)) * SHARED_BYTES


def test_what_cannot_be_kept_is_not_copied() -> None:
    ahead = KVCache()
    entries = mx.zeros((1, 1, 3, 8))
    ahead.update_and_fetch(entries, entries)
    assert compact_bytes([ahead]) == 2 * 3 * 8 * 4
    PrefixCache(compact_bytes([ahead]) - 1).insert(np.arange(3), [ahead])
    assert ahead.nbytes == 2 * 256 * 8 * 4
    compact([ahead])
    assert num_bytes([ahead]) == compact_bytes([ahead])
