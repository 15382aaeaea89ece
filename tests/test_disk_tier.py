"""What was stored is found by all of its keys and nothing else, in as few files as can be."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.engine.disk_tier import BLOCK_SIZE, DiskTier, namespace
from mlx_server.engine.kv_caches import KVCaches
from tests.kv_states import (
    PLENTY,
    damaged,
    files,
    hybrid,
    keys_of,
    make_store,
    make_tier,
    quantised,
    same,
    sliceable,
)
from tests.patience import HANG_S

Make = Callable[[Sequence[int]], KVCaches]
IDS = list(range(1, 4 * BLOCK_SIZE + 8))


def half(ids: Sequence[int]) -> KVCaches:
    return sliceable(ids, dtype=mx.bfloat16)


def put(
    tier: DiskTier,
    ids: Sequence[int],
    make: Make = sliceable,
    *,
    variant: str = "",
    is_flushed: bool = True,
) -> None:
    tier.insert(keys_of(ids), make(ids), variant)
    if is_flushed:
        assert tier._store.flush(HANG_S)


def found(
    tier: DiskTier,
    ids: Sequence[int],
    make: Make = sliceable,
    *,
    variant: str = "",
    min_tokens: int = 1,
) -> int:
    """How much of the ids is stored; what comes of it must be their state."""
    match = tier.match(keys_of(ids), len(ids), variant, min_tokens=min_tokens)
    if match is None:
        return 0
    assert same(match.caches, make(ids[: match.num_tokens]))
    return match.num_tokens


def length(tier: DiskTier, ids: Sequence[int]) -> int:
    hit = tier.find(keys_of(ids), len(ids), "")
    return hit.num_tokens if hit else 0


@pytest.mark.parametrize("make", [sliceable, half, quantised])
@pytest.mark.parametrize("is_flushed", [True, False])
def test_state_in_blocks_is_found_up_to_the_last_whole_block_in_common(
    tmp_path: Path, make: Make, is_flushed: bool
) -> None:
    tier = make_tier(tmp_path)
    put(tier, IDS, make, is_flushed=is_flushed)
    for num_common, expected in ((127, 96), (128, 128), (135, 128), (31, 0), (32, 32), (0, 0)):
        asked = [*IDS[:num_common], *range(1000, 1040)]
        assert found(tier, asked, make) == expected
        assert length(tier, asked) == expected
    assert found(tier, [0, *IDS], make) == 0


@pytest.mark.parametrize("is_flushed", [True, False])
def test_b112_state_that_cannot_be_cut_is_found_only_whole(
    tmp_path: Path, is_flushed: bool
) -> None:
    tier = make_tier(tmp_path)
    for num_tokens in (5, 32, 20):
        put(tier, IDS[:num_tokens], hybrid, is_flushed=is_flushed)
    for num_common, expected in ((40, 32), (32, 32), (31, 20), (20, 20), (19, 5), (4, 0)):
        asked = [*IDS[:num_common], *([999] * (40 - num_common))]
        assert found(tier, asked, hybrid) == expected
        assert length(tier, asked) == expected
    assert found(tier, IDS[:32], hybrid) == 32
    assert tier.match(keys_of(IDS), 31, "") is not None
    assert tier.find(keys_of(IDS), 4, "") is None
    assert tier.find(keys_of(IDS), -1, "") is None


@pytest.mark.parametrize(("make", "num_tokens"), [(sliceable, 128), (hybrid, 135)])
def test_a_restart_finds_everything(tmp_path: Path, make: Make, num_tokens: int) -> None:
    put(make_tier(tmp_path), IDS, make)
    assert found(make_tier(tmp_path), IDS, make) == num_tokens


@pytest.mark.parametrize("make", [sliceable, hybrid])
def test_b114_keys_that_differ_by_256_at_one_place_are_different(
    tmp_path: Path, make: Make
) -> None:
    tier = make_tier(tmp_path)
    ids = IDS[: 2 * BLOCK_SIZE]
    put(tier, ids, make)
    for place in (0, 17, 33, 63):
        for step in (256, 2**32):
            asked = list(ids)
            asked[place] += step
            match = tier.match(keys_of(asked), len(asked), "")
            expected = BLOCK_SIZE if make is sliceable and place >= BLOCK_SIZE else 0
            assert (match.num_tokens if match else 0) == expected


@pytest.mark.parametrize("make", [sliceable, hybrid])
def test_models_and_variants_do_not_meet(tmp_path: Path, make: Make) -> None:
    tier, other = make_tier(tmp_path), make_tier(tmp_path, model="other")
    put(tier, IDS, make)
    assert found(other, IDS, make) == 0
    assert found(tier, IDS, make, variant="q8") == 0
    put(tier, IDS, make, variant="q8")
    assert found(tier, IDS, make, variant="q8") > 0


@pytest.mark.parametrize("make", [sliceable, hybrid])
def test_files_moved_to_another_model_s_folder_serve_nobody(tmp_path: Path, make: Make) -> None:
    put(make_tier(tmp_path), IDS, make)
    (tmp_path / namespace("m")).rename(tmp_path / namespace("other"))
    assert found(make_tier(tmp_path, model="other"), IDS, make) == 0
    # even if they are given the names that are asked for
    other = make_tier(tmp_path / "b", model="other")
    put(other, IDS, make)
    theirs = files(tmp_path / namespace("other"))
    for source, target in zip(theirs, files(tmp_path / "b"), strict=True):
        target.write_bytes(source.read_bytes())
    assert found(other, IDS, make) == 0


def test_settings_cannot_be_taken_for_one_another() -> None:
    names = {namespace("a", "b"), namespace("ab"), namespace("a", "", "b"), namespace("b", "a")}
    assert len(names) == 4


def test_another_turn_writes_only_its_new_blocks(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    put(tier, IDS[:70])
    before = {path: path.stat().st_ino for path in files(tmp_path)}
    assert len(before) == 2
    put(tier, IDS)
    after = {path: path.stat().st_ino for path in files(tmp_path)}
    assert len(after) == 4
    assert before.items() <= after.items()


def test_prompts_share_what_they_begin_with(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    system = IDS[:64]
    for user in range(5):
        put(tier, [*system, *range(1000 * user + 1000, 1000 * user + 1032)])
    assert len(files(tmp_path)) == 2 + 5


@pytest.mark.parametrize("place", [0, 1, 3])
def test_blocks_before_a_damaged_one_still_serve(tmp_path: Path, place: int) -> None:
    tier = make_tier(tmp_path)
    put(tier, IDS)
    path = files(tmp_path)[place]
    whole = path.read_bytes()
    for data in damaged(whole):
        path.write_bytes(data)
        assert found(tier, IDS) == place * BLOCK_SIZE
        assert not path.exists()
    put(tier, IDS)
    assert path.read_bytes() == whole
    assert found(tier, IDS) == 4 * BLOCK_SIZE


def test_behind_a_damaged_state_a_shorter_one_still_serves(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    for num_tokens in (10, 20, 30):
        put(tier, IDS[:num_tokens], hybrid)
    _, middle, last = files(tmp_path)
    last.write_bytes(last.read_bytes()[:-1])
    middle.write_bytes(b"")
    assert found(tier, IDS, hybrid) == 10
    assert len(files(tmp_path)) == 1


def test_damaged_files_that_cannot_be_removed_are_a_miss_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = make_tier(tmp_path)
    put(tier, IDS)
    put(tier, IDS[:20], hybrid)
    for path in files(tmp_path):
        path.write_bytes(b"damaged")
    monkeypatch.setattr(type(tier._store.folder), "remove", lambda folder, name: None)
    assert found(tier, IDS) == 0


def test_what_is_not_longer_than_what_the_caller_has_is_not_read(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    put(tier, IDS)
    assert found(tier, IDS, min_tokens=129) == 0
    assert found(tier, IDS, min_tokens=128) == 128
    files(tmp_path)[2].write_bytes(b"")
    assert found(tier, IDS, min_tokens=65) == 0
    assert found(tier, IDS, min_tokens=64) == 64


def test_two_servers_can_share_a_folder(tmp_path: Path) -> None:
    ours, theirs = make_tier(tmp_path), make_tier(tmp_path)
    put(ours, IDS[:70])
    assert found(theirs, IDS) == 64
    put(theirs, IDS)
    assert found(ours, IDS) == 128
    theirs.forget(keys_of(IDS), "")
    assert length(ours, IDS) == 0
    assert found(ours, IDS) == 0
    put(ours, IDS)
    assert found(theirs, IDS) == 128


def test_files_may_vanish_between_the_search_and_the_reading(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    put(tier, IDS)
    hit = tier.find(keys_of(IDS), len(IDS), "")
    assert hit is not None
    files(tmp_path)[1].unlink()
    match = tier._read(keys_of(IDS), hit)
    assert match is not None
    assert match.num_tokens == BLOCK_SIZE


def test_the_budget_keeps_what_was_used_last_and_the_beginnings_of_it(tmp_path: Path) -> None:
    put(make_tier(tmp_path / "a"), IDS[:BLOCK_SIZE])
    size = files(tmp_path / "a")[0].stat().st_size + 100
    tier = make_tier(tmp_path / "b", 6 * size)
    first, second = IDS, [0, *IDS]
    put(tier, first)
    put(tier, second)
    assert found(tier, second) == 128
    assert 0 < found(tier, first) <= 64
    for _ in range(3):
        put(tier, first)
        assert found(tier, first) == 128
        assert tier.num_bytes == sum(p.stat().st_size for p in files(tmp_path / "b")) <= 6 * size
    long = list(range(2000, 2000 + 20 * BLOCK_SIZE))
    put(tier, long)
    assert found(tier, long) >= 4 * BLOCK_SIZE, "a beginning that fits is kept"


def test_the_budget_goes_by_use_before_a_restart_as_well(tmp_path: Path) -> None:
    tier = make_tier(tmp_path)
    for start in (1000, 2000, 3000):
        put(tier, range(start, start + 2 * BLOCK_SIZE))
    assert found(tier, range(1000, 1064)) == 64
    size = tier.num_bytes // 6
    again = make_tier(tmp_path, int(4.5 * size))
    assert [found(again, range(n, n + 64)) for n in (1000, 2000, 3000)] == [64, 0, 64]


def test_what_is_forgotten_is_what_could_serve_the_prompt_in_this_model(tmp_path: Path) -> None:
    tier, other = make_tier(tmp_path), make_tier(tmp_path, model="other")
    put(tier, IDS)
    put(tier, IDS, hybrid)
    put(tier, [0, *IDS])
    put(other, IDS)
    tier.forget(keys_of(IDS), "")
    assert found(tier, IDS) == 0
    assert found(tier, [0, *IDS]) == 128
    assert found(other, IDS) == 128


def test_what_does_not_fit_into_the_queue_leaves_a_usable_beginning(tmp_path: Path) -> None:
    put(make_tier(tmp_path / "a"), IDS[:BLOCK_SIZE])
    size = files(tmp_path / "a")[0].stat().st_size
    store = make_store(tmp_path / "b", PLENTY, max_queued_bytes=size)
    tier = DiskTier(store, namespace("m"))
    for expected in (32, 64, 96, 128):
        is_complete = tier.insert(keys_of(IDS), sliceable(IDS), "")
        assert store.flush(HANG_S)
        assert found(tier, IDS) >= expected
    assert is_complete
    assert tier.insert(keys_of(IDS), sliceable(IDS), "")


HALF_BLOCKS = st.lists(st.integers(1, 2), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(HALF_BLOCKS, st.booleans(), st.booleans()), max_size=12))
def test_any_history_finds_the_longest_of_what_was_stored(
    history: list[tuple[list[int], bool, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        tier = make_tier(Path(root))
        stored: list[tuple[list[int], bool]] = []
        for halves, is_whole, is_restarted in history:
            ids = [half for half in halves for _ in range(BLOCK_SIZE // 2)]
            expected = max((usable(*entry, ids) for entry in stored), default=0)
            match = tier.match(keys_of(ids), len(ids) - 1, "")
            assert (match.num_tokens if match else 0) == expected
            put(tier, ids, hybrid if is_whole else sliceable)
            stored.append((ids, is_whole))
            if is_restarted:
                tier = make_tier(Path(root))


def usable(kept: list[int], is_whole: bool, asked: list[int]) -> int:
    pairs = enumerate(zip(kept, asked, strict=False))
    common = next((i for i, (a, b) in pairs if a != b), min(len(kept), len(asked)))
    common = min(common, len(asked) - 1)
    if is_whole:
        return len(kept) if common >= len(kept) else 0
    return common // BLOCK_SIZE * BLOCK_SIZE
