"""The prefix cache with a disk behind it: what memory has lost comes back, the longer is taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import KVCache

from mlx_server.engine.disk_tier import DiskTier, namespace
from mlx_server.engine.kv_caches import KVCaches
from mlx_server.engine.prefix_cache import PrefixCache
from tests.kv_states import (
    PLENTY,
    files,
    hybrid,
    keys_of,
    make_store,
    make_tier,
    same,
    sliceable,
)
from tests.prefix_cache_books import check_books

LONG = list(range(1, 101))


@pytest.mark.parametrize(("make", "on_disk"), [(sliceable, 96), (hybrid, 100)])
def test_what_memory_has_lost_comes_back_from_disk_and_stays(
    tmp_path: Path, make: Callable[[Sequence[int]], KVCaches], on_disk: int
) -> None:
    cache = PrefixCache(PLENTY, make_tier(tmp_path))
    cache.insert(keys_of(LONG), make(LONG))
    cache.clear()
    asked = keys_of([*LONG, 7])
    assert cache.peek(asked) == on_disk
    assert len(cache) == 0
    for _ in range(2):
        match = cache.match(asked)
        assert match is not None
        assert match.num_tokens == on_disk
        assert same(match.caches, make(LONG[:on_disk]))
        # the entry in memory must not notice
        for kv in match.caches:
            if isinstance(kv, KVCache):
                entry = mx.zeros((1, *kv.keys.shape[1:2], 1, kv.keys.shape[3]))
                kv.update_and_fetch(entry, entry)
        check_books(cache)
        assert len(cache) == 1
    cache.forget(asked)
    assert cache.match(asked) is None


@pytest.mark.parametrize(("in_memory", "expected"), [(100, 100), (96, 96), (95, 96), (40, 96)])
def test_the_longer_of_memory_and_disk_is_taken(
    tmp_path: Path, in_memory: int, expected: int
) -> None:
    tier = make_tier(tmp_path)
    tier.insert(keys_of(LONG), sliceable(LONG), "")
    assert tier._store.flush(10.0)
    cache = PrefixCache(PLENTY, make_tier(tmp_path / "other"))
    cache.insert(keys_of(LONG[:in_memory]), sliceable(LONG[:in_memory]))
    cache._disk = tier
    asked = keys_of([*LONG, 7])
    assert cache.peek(asked) == expected
    match = cache.match(asked)
    assert match is not None
    assert match.num_tokens == expected
    assert same(match.caches, sliceable(LONG[:expected]))
    assert len(cache) == 1
    check_books(cache)


@pytest.mark.parametrize("num_asked", [96, 97, 100, 101])
def test_b108_the_disk_never_holds_all_of_the_prompt(tmp_path: Path, num_asked: int) -> None:
    cache = PrefixCache(0, make_tier(tmp_path))
    cache.insert(keys_of(LONG), sliceable(LONG))
    cache.insert(keys_of(LONG[:96]), hybrid(LONG[:96]))
    for asked in ([*LONG, 7][:num_asked], LONG[:32], LONG[:1]):
        match = cache.match(keys_of(asked))
        assert (match.num_tokens if match else 0) == cache.peek(keys_of(asked)) < len(asked)


def test_stats_tell_of_the_disk(tmp_path: Path) -> None:
    tier = make_tier(tmp_path, 12_345_678)
    cache = PrefixCache(0, tier)
    cache.insert(keys_of(LONG), sliceable(LONG))
    assert tier._store.flush(10.0)
    stats = cache.stats()
    assert (stats.num_disk_entries, stats.max_disk_bytes) == (3, 12_345_678)
    assert stats.num_disk_bytes == sum(path.stat().st_size for path in files(tmp_path))


@pytest.fixture
def refused(tmp_path: Path) -> PrefixCache:
    """A cache whose only entry came while the disk's queue was full."""
    store = make_store(tmp_path, max_queued_bytes=0)
    cache = PrefixCache(PLENTY, DiskTier(store, namespace("m")))
    cache.insert(keys_of(LONG), sliceable(LONG))
    assert cache.stats().num_disk_entries == 0
    store._max_queued_bytes = PLENTY
    return cache


@pytest.mark.parametrize(
    "use",
    [
        lambda cache: cache.match(keys_of([*LONG, 7])),
        lambda cache: cache.insert(keys_of(LONG[:50]), sliceable(LONG[:50])),
        lambda cache: cache.shrink_to(0),
        lambda cache: cache.leave_to_disk(),
    ],
    ids=["found", "found in place of a shorter one", "evicted", "left"],
)
def test_what_a_full_queue_has_refused_is_offered_again(
    refused: PrefixCache, use: Callable[[PrefixCache], object]
) -> None:
    use(refused)
    assert refused._disk is not None
    assert refused._disk._store.flush(10.0)
    assert refused.stats().num_disk_entries == 3
    refused.clear()
    assert refused.peek(keys_of(LONG)) == 96


def test_what_is_on_disk_is_not_offered_again(tmp_path: Path) -> None:
    cache = PrefixCache(PLENTY, make_tier(tmp_path))
    cache.insert(keys_of(LONG), sliceable(LONG))
    assert cache._disk is not None
    assert cache._disk._store.flush(10.0)
    cache._disk._store.clear()
    cache.match(keys_of([*LONG, 7]))
    cache.shrink_to(0)
    assert cache._disk._store.flush(10.0)
    assert cache.stats().num_disk_entries == 0
