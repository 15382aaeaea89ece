"""State that was on the host is the state that it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_vlm.models.cache import ArraysCache, CacheList, ChunkedKVCache, KVCache

from mlx_server.engine.host_state import (
    HostState,
    can_be_stored,
    is_sliceable,
    to_caches,
    to_host,
)
from mlx_server.engine.kv_caches import KVCaches, fork
from tests.kv_states import hybrid, quantised, same, sliceable

IDS = list(range(1, 14))
Make = Callable[[Sequence[int]], KVCaches]


def nested(ids: Sequence[int]) -> KVCaches:
    return [CacheList(*hybrid(ids)), *sliceable(ids)]


def half(ids: Sequence[int]) -> KVCaches:
    return sliceable(ids, dtype=mx.bfloat16)


@pytest.mark.parametrize("make", [sliceable, half, quantised, hybrid, nested])
def test_state_comes_back_from_the_host(make: Make) -> None:
    caches = make(IDS)
    assert can_be_stored(caches)
    assert same(to_caches(to_host(caches)), caches)


@pytest.mark.parametrize("make", [sliceable, half, quantised])
def test_pieces_make_up_the_whole_again(make: Make) -> None:
    host = to_host(make(IDS))
    pieces = [host.positions(0, 4), host.positions(4, 5), host.positions(5, len(IDS))]
    assert same(to_caches(*pieces), make(IDS))
    assert same(to_caches(*pieces[:2]), make(IDS[:5]))
    assert not same(to_caches(*pieces[1:]), make(IDS))


def test_pieces_of_different_states_are_not_joined() -> None:
    for other in (half(IDS), quantised(IDS), sliceable(IDS)[:1], sliceable(IDS)[::-1]):
        with pytest.raises(ValueError):
            to_caches(to_host(sliceable(IDS)), to_host(other))


def test_views_keep_what_they_show_when_the_caches_go_on() -> None:
    caches = sliceable(IDS)
    host = to_host(caches)
    before = [np.array(array.data) for array in host.arrays]
    for cache in caches:
        width = cache.keys.shape[-1]
        cache.trim(3)
        entry = mx.full((1, 2, 2, width), 99.0)
        cache.update_and_fetch(entry, entry)
        mx.eval(cache.state)
    assert all(map(np.array_equal, before, (array.data for array in host.arrays)))


@pytest.mark.parametrize("make", [sliceable, half])
def test_the_host_makes_no_copy(make: Make) -> None:
    assert not any(array.data.flags.owndata for array in to_host(make(IDS)).arrays)


def test_only_state_with_a_place_for_each_position_is_sliceable() -> None:
    assert is_sliceable(sliceable(IDS))
    assert is_sliceable(quantised(IDS))
    assert not is_sliceable(hybrid(IDS))
    assert not is_sliceable([CacheList(*sliceable(IDS))])


def test_state_that_is_not_known_to_be_complete_is_not_stored() -> None:
    class Odd(KVCache):  # type: ignore[misc]
        pass

    padded = ArraysCache(1, left_padding=[2])
    padded[0] = mx.zeros((1, 1))
    lengthy: Any = fork(hybrid(IDS))[0]
    lengthy.prepare(lengths=[3])
    for cache in (Odd(), ChunkedKVCache(4), padded, lengthy):
        assert not can_be_stored([cache])
        assert not can_be_stored([*sliceable(IDS), cache])
        assert not can_be_stored([CacheList(cache)])
    wide = KVCache.from_state([mx.zeros((1, 1, 2, 1), dtype=mx.complex64)] * 2, "")
    assert not can_be_stored([wide])


@pytest.mark.parametrize(
    "layout",
    [
        "",
        "{}}",
        "[1]",
        '[{"kind": "object", "meta": [], "state": []}]',
        '[{"kind": "KVCache", "meta": [], "state": [0, 99]}]',
        '[{"kind": "KVCache", "meta": [], "state": 0}]',
        '[{"kind": "KVCache", "meta": ["1"], "state": [0, 1]}]',
        '[{"kind": "RotatingKVCache", "meta": ["x"], "state": [0, 1]}]',
        '[{"kind": "CacheList", "meta": []}]',
    ],
)
def test_a_layout_that_describes_no_caches_is_refused(layout: str) -> None:
    arrays = to_host(sliceable(IDS)).arrays
    with pytest.raises(ValueError):
        to_caches(HostState(layout, arrays))
