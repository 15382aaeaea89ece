"""State is found by its longest prefix, cut exactly, counted in bytes and let go of in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_vlm.models.cache import ArraysCache, KVCache, RotatingKVCache

from mlx_server.engine.kv_caches import KVCaches, compact, num_bytes
from mlx_server.engine.prefix_cache import PrefixCache, PrefixMatch
from tests.kv_states import PLENTY, keys_of
from tests.prefix_cache_books import check_books

WINDOW = 4


def state_of(ids: Sequence[int], *, can_go_back: bool = True) -> KVCaches:
    """Caches whose keys at every position are the ids that the position stands for."""
    entries = mx.array(list(ids), dtype=mx.float32)[None, None, :, None]
    plain = KVCache()
    plain.update_and_fetch(entries, -entries)
    compact([plain])
    if can_go_back:
        return [plain, KVCache.from_state((entries, entries), "")]
    recurrent = ArraysCache(1)
    recurrent[0] = mx.array([[float(sum(ids))]])
    return [recurrent, plain]


def test_what_is_allocated_ahead_is_not_kept() -> None:
    ahead = KVCache()
    entries = mx.zeros((1, 1, 3, 8))
    ahead.update_and_fetch(entries, entries)
    assert ahead.nbytes == 2 * 256 * 8 * 4
    cache = PrefixCache(PLENTY)
    cache.insert(keys_of([1, 2, 3]), [ahead])
    assert cache.num_bytes == 2 * 3 * 8 * 4
    match = cache.match(keys_of([1, 2, 3, 4]))
    assert match is not None
    assert match.caches[0].offset == 3


def windowed(ids: Sequence[int]) -> KVCaches:
    window = RotatingKVCache(max_size=WINDOW)
    for i in ids:
        entry = mx.full((1, 1, 1, 1), float(i))
        window.update_and_fetch(entry, entry)
    return [window]


def check(match: PrefixMatch | None, ids: Sequence[int], length: int) -> None:
    """The match holds exactly the first `length` of the ids."""
    if length == 0:
        assert match is None
        return
    assert match is not None
    assert match.num_tokens == length
    for cache in match.caches:
        if isinstance(cache, KVCache):
            assert cache.offset == length
            held = np.array(cache.state[0]).reshape(-1)
            assert held.tolist() == [float(i) for i in ids[:length]]
        elif isinstance(cache, ArraysCache):
            assert np.array(cache[0]).item() == sum(ids[:length])


def look_up(cache: PrefixCache, ids: Sequence[int]) -> int:
    match = cache.match(keys_of(ids))
    length = match.num_tokens if match else 0
    check(match, ids, length)
    return length


def put(cache: PrefixCache, ids: Sequence[int], *, can_go_back: bool = True) -> None:
    cache.insert(keys_of(ids), state_of(ids, can_go_back=can_go_back))


def test_nothing_is_found_in_an_empty_cache() -> None:
    assert PrefixCache(PLENTY).match(keys_of([1, 2])) is None


@pytest.mark.parametrize(
    ("asked", "length"),
    [
        ([1, 2, 3, 4, 5, 6], 5),
        ([1, 2, 3, 4, 5], 4),
        ([1, 2, 3], 2),
        ([1, 2, 9, 9], 2),
        ([1], 0),
        ([9, 1, 2, 3], 0),
    ],
)
def test_b108_the_longest_prefix_is_found_but_never_all_of_the_prompt(
    asked: list[int], length: int
) -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3, 4, 5])
    assert look_up(cache, asked) == length


@pytest.mark.parametrize(
    ("asked", "length"), [([1, 2, 3, 4], 3), ([1, 2, 3], 0), ([1, 2, 9], 0), ([1, 2], 0)]
)
def test_state_that_cannot_go_back_serves_only_what_begins_with_all_of_it(
    asked: list[int], length: int
) -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3], can_go_back=False)
    assert look_up(cache, asked) == length


def test_b112_a_window_that_has_wrapped_cannot_go_back() -> None:
    cache = PrefixCache(PLENTY)
    ids = list(range(1, WINDOW + 3))
    cache.insert(keys_of(ids), windowed(ids))
    assert cache.match(keys_of(ids)) is None
    assert cache.match(keys_of([*ids[:-1], 99, 98])) is None
    match = cache.match(keys_of([*ids, 50]))
    assert match is not None
    assert match.num_tokens == len(ids)
    cache.insert(keys_of(ids[: WINDOW - 1]), windowed(ids[: WINDOW - 1]))
    shorter = cache.match(keys_of([1, 2, 99]))
    assert shorter is not None
    assert shorter.num_tokens == 2


def test_b114_ids_that_differ_by_256_are_different() -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3, 4])
    for place in range(4):
        asked = [1, 2, 3, 4, 5]
        asked[place] += 256
        assert look_up(cache, asked) == place
    assert look_up(cache, [1 + 2**32, 2, 3]) == 0


def test_a_match_is_the_caller_s_to_change() -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3])
    match = cache.match(keys_of([1, 2, 3, 4]))
    assert match is not None
    entry = mx.full((1, 1, 1, 1), 77.0)
    for kv in match.caches:
        kv.update_and_fetch(entry, entry)
    assert look_up(cache, [1, 2, 3, 5]) == 3
    trimmed = cache.match(keys_of([1, 9]))
    assert trimmed is not None
    for kv in trimmed.caches:
        kv.update_and_fetch(entry, entry)
    assert look_up(cache, [1, 2, 3, 4]) == 3


def test_bytes_are_those_of_all_that_is_kept() -> None:
    cache = PrefixCache(PLENTY)
    first, second = state_of([1, 2]), state_of(range(5, 300))
    cache.insert(keys_of([1, 2]), first)
    assert cache.num_bytes == num_bytes(first)
    cache.insert(keys_of(range(5, 300)), second)
    assert cache.num_bytes == num_bytes(first) + num_bytes(second)
    cache.clear()
    assert (cache.num_bytes, len(cache)) == (0, 0)
    assert look_up(cache, [1, 2, 3]) == 0


def test_longer_state_that_can_go_back_takes_the_place_of_shorter() -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3])
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 2, 3, 4])
    assert len(cache) == 1
    assert cache.num_bytes == num_bytes(state_of([1, 2, 3, 4]))
    assert look_up(cache, [1, 2, 3, 9]) == 3


def test_longer_state_that_cannot_go_back_leaves_shorter_alone() -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2], can_go_back=False)
    put(cache, [1, 2, 3], can_go_back=False)
    put(cache, [1, 2, 3], can_go_back=False)
    assert len(cache) == 2
    assert look_up(cache, [1, 2, 9]) == 2
    assert look_up(cache, [1, 2, 3, 9]) == 3


def test_state_that_is_already_served_is_not_kept_twice() -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3, 4])
    kept = cache.num_bytes
    put(cache, [1, 2])
    assert (len(cache), cache.num_bytes) == (1, kept)
    assert look_up(cache, [1, 2, 3, 4, 5]) == 4


def test_the_least_recently_used_state_leaves_first() -> None:
    size = num_bytes(state_of([1, 1]))
    cache = PrefixCache(3 * size)
    for i in (1, 2, 3):
        put(cache, [i, i])
    assert look_up(cache, [1, 1, 0]) == 2
    put(cache, [4, 4])
    assert [look_up(cache, [i, i, 0]) for i in (1, 2, 3, 4)] == [2, 0, 2, 2]
    put(cache, [3, 3])
    put(cache, [5, 5])
    assert [look_up(cache, [i, i, 0]) for i in (1, 2, 3, 4, 5)] == [0, 0, 2, 2, 2]


def test_state_larger_than_the_budget_drives_nothing_out() -> None:
    small = state_of([1, 2])
    cache = PrefixCache(num_bytes(small))
    cache.insert(keys_of([1, 2]), small)
    put(cache, list(range(300)))
    assert len(cache) == 1
    assert look_up(cache, [1, 2, 3]) == 2


def test_a_budget_of_zero_keeps_nothing() -> None:
    cache = PrefixCache(0)
    put(cache, [1, 2])
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_state_of_no_positions_is_not_kept() -> None:
    cache = PrefixCache(PLENTY)
    cache.insert(keys_of([]), [KVCache()])
    assert len(cache) == 0


def test_variants_do_not_mix() -> None:
    cache = PrefixCache(PLENTY)
    keys = keys_of([1, 2, 3])
    cache.insert(keys, state_of([1, 2, 3]))
    cache.insert(keys, state_of([1, 2, 3]), "q8")
    check_books(cache)
    assert len(cache) == 2
    assert cache.peek(keys_of([1, 2, 3, 4]), "q8") == 3
    assert cache.match(keys_of([1, 2, 3, 4]), "q4") is None
    assert cache.peek(keys_of([1, 2, 3, 4]), "q4") == 0


def test_a_peek_is_no_use() -> None:
    size = num_bytes(state_of([1, 1]))
    cache = PrefixCache(2 * size)
    put(cache, [1, 1])
    put(cache, [2, 2])
    assert cache.peek(keys_of([1, 1, 1])) == 2
    put(cache, [3, 3])
    assert [cache.peek(keys_of([i, i, i])) for i in (1, 2, 3)] == [0, 2, 2]
    assert cache.stats().num_lookups == 0


def test_memory_is_given_back_when_it_is_asked_for() -> None:
    size = num_bytes(state_of([1, 1]))
    cache = PrefixCache(PLENTY)
    for i in (1, 2, 3):
        put(cache, [i, i])
    assert look_up(cache, [1, 1, 0]) == 2
    cache.shrink_to(2 * size)
    assert [cache.peek(keys_of([i, i, i])) for i in (1, 2, 3)] == [2, 0, 2]
    cache.shrink_to(2 * size - 1)
    assert [cache.peek(keys_of([i, i, i])) for i in (1, 2, 3)] == [2, 0, 0]
    cache.shrink_to(0)
    check_books(cache)
    assert (len(cache), cache.num_bytes) == (0, 0)


def test_the_bytes_never_pass_the_budget_even_for_a_moment() -> None:
    class Watched(PrefixCache):
        most = 0

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "num_bytes":
                self.most = max(self.most, value)
            super().__setattr__(name, value)

    cache = Watched(2 * num_bytes(state_of([1])))
    for i in range(6):
        put(cache, [i])
    assert cache.most == cache.max_bytes


def test_stats_count_lookups_and_tokens() -> None:
    cache = PrefixCache(PLENTY)
    put(cache, [1, 2, 3])
    assert [look_up(cache, asked) for asked in ([1, 2, 3, 4], [9, 9], [1, 2, 8])] == [3, 0, 2]
    stats = cache.stats()
    assert (stats.num_lookups, stats.num_hits) == (3, 2)
    assert (stats.num_tokens_asked, stats.num_tokens_cached) == (9, 5)
    assert (stats.num_entries, stats.num_bytes, stats.max_bytes) == (1, cache.num_bytes, PLENTY)
    assert (stats.num_disk_entries, stats.num_disk_bytes, stats.max_disk_bytes) == (0, 0, 0)


def test_wrong_books_are_noticed() -> None:
    short = PrefixCache(PLENTY)
    short.insert(keys_of([1, 2]), state_of([1]))
    wrong_sum, covered = PrefixCache(PLENTY), PrefixCache(PLENTY)
    put(wrong_sum, [1])
    wrong_sum.num_bytes += 1
    put(covered, [1, 2])
    put(covered, [3])
    entries = covered._entries
    entries[1] = dataclasses.replace(entries[1], keys=keys_of([1]))
    too_much = PrefixCache(PLENTY)
    put(too_much, [1])
    too_much.max_bytes = 1
    for cache in (short, wrong_sum, covered, too_much):
        with pytest.raises(AssertionError):
            check_books(cache)


ids = st.lists(st.integers(1, 2), max_size=6)
actions = st.lists(
    st.tuples(st.sampled_from(["insert", "match", "shrink"]), ids, st.booleans()), max_size=25
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(actions, st.sampled_from([PLENTY, 4, 2]))
def test_any_history_finds_what_a_plain_list_of_entries_would(
    history: list[tuple[str, list[int], bool]], num_entries: int
) -> None:
    longest = [1] * 6
    size = num_bytes(state_of(longest)), num_bytes(state_of(longest, can_go_back=False))
    cache = PrefixCache(num_entries * max(size))
    entries: list[tuple[list[int], bool]] = []
    for action, asked, can_go_back in history:
        if action == "insert":
            put(cache, asked, can_go_back=can_go_back)
            entries = after_insert(entries, asked, can_go_back)
            while len(entries) > len(cache):
                entries.pop(0)
        elif action == "shrink":
            cache.shrink_to(len(asked) * max(size))
            while sum_of(entries) > len(asked) * max(size):
                entries.pop(0)
        else:
            best = best_entry(entries, asked)
            assert look_up(cache, asked) == (best[1] if best else 0)
            if best:
                entries.append(entries.pop(best[0]))
        assert len(cache) == len(entries)
        assert cache.num_bytes == sum_of(entries)
        check_books(cache)


def sum_of(entries: list[tuple[list[int], bool]]) -> int:
    return sum(num_bytes(state_of(kept, can_go_back=back)) for kept, back in entries)


def after_insert(
    entries: list[tuple[list[int], bool]], new: list[int], can_go_back: bool
) -> list[tuple[list[int], bool]]:
    if not new:
        return entries
    for entry in entries:
        if entry[1] and entry[0][: len(new)] == new and len(entry[0]) > len(new):
            return [*(e for e in entries if e is not entry), entry]
    kept = [
        (old, back)
        for old, back in entries
        if old != new and not (can_go_back and new[: len(old)] == old)
    ]
    return [*kept, (new, can_go_back)]


def best_entry(entries: list[tuple[list[int], bool]], asked: list[int]) -> tuple[int, int] | None:
    """The place in the list and the usable length; the oldest of the best."""
    best = None
    for place, (kept, can_go_back) in enumerate(entries):
        common = next(
            (i for i, (a, b) in enumerate(zip(kept, asked, strict=False)) if a != b),
            min(len(kept), len(asked)),
        )
        length = min(common, len(asked) - 1)
        if length < len(kept) and not can_go_back:
            continue
        if length > (best[1] if best else 0):
            best = (place, length)
    return best
