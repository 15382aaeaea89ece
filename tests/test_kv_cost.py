"""The bytes that are told before a prompt runs are those of its caches afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from mlx_server.config import EngineConfig, KVQuantisation
from mlx_server.engine.device import prepare_device
from mlx_server.engine.kv_caches import KVCaches, materialise, num_bytes
from mlx_server.engine.kv_cost import CacheCost, KVCost, costs_of, measure_kv_cost
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.prefill import LAST_PIECE
from mlx_server.engine.sequence import RawPrompt
from tests.engine_runs import make_runner, make_sequence, start
from tests.tiny.checkpoints import tiny_gemma3, tiny_llama

LENGTHS = (1, 2, 8, 9, 63, 64, 65, 66, 255, 256, 257, 600)
CHUNK = 128
HEAD_DIM = 64


def caches_after(loaded: LoadedModel, num_tokens: int) -> KVCaches:
    """What a row holds when its prompt is through."""
    runner = make_runner(loaded, step_size=CHUNK, cache_bytes=0)
    sequence = make_sequence(RawPrompt([20 + i % 50 for i in range(num_tokens)]))
    start(runner, sequence)
    caches: KVCaches = runner._batch(loaded.kv_variant(num_tokens)).release([sequence.uid])[0]
    materialise(caches)
    return caches


def write(cache: Any, num_tokens: int) -> None:
    state = mx.zeros((1, 2, num_tokens, HEAD_DIM))
    cache.update_and_fetch(state, state)


def cost_of(*caches: Any) -> KVCost:
    costs = costs_of(list(caches), 2)
    return KVCost(tuple(cost for cost in costs if cost is not None))


def test_a_row_costs_what_its_caches_hold(tiny: LoadedModel) -> None:
    cost = measure_kv_cost(tiny)
    assert cost.row_bytes(0) == 0
    for length in LENGTHS:
        held = num_bytes(caches_after(tiny, length))
        assert held <= cost.row_bytes(length) <= held + slack(cost), length


def slack(cost: KVCost) -> int:
    """What a window holds depends on how many tokens came last."""
    windows = (cache for cache in cost.caches if cache.window is not None)
    return sum((cache.step + LAST_PIECE) * cache.slot_bytes for cache in windows)


@pytest.fixture(scope="module", params=[("llama", 4), ("llama", 8), ("gemma3", 8)], ids=str)
def packed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], LoadedModel]:
    """A model that keeps prompts from that length on in few bits."""
    name, bits = request.param
    write = {"llama": tiny_llama, "gemma3": tiny_gemma3}[name]
    folder = write(tmp_path_factory.mktemp("packed") / name, head_dim=HEAD_DIM)
    prepare_device()

    def load(start: int) -> LoadedModel:
        wanted = KVQuantisation(bits, start=start)
        return load_checkpoint("m", folder, EngineConfig(kv_quantisation=wanted))

    return load


def test_where_short_rows_stay_exact_the_cost_is_enough_for_both_kinds(
    packed: Callable[[int], LoadedModel],
) -> None:
    loaded = packed(64)
    cost = measure_kv_cost(loaded)
    assert cost.is_packed
    for length in LENGTHS:
        held = num_bytes(caches_after(loaded, length))
        assert cost.row_bytes(length) >= held, length
        assert length >= 64 or cost.row_bytes(length) <= held + slack(cost), length


def test_where_all_rows_are_packed_the_cost_is_theirs(packed: Callable[[int], LoadedModel]) -> None:
    loaded = packed(0)
    cost = measure_kv_cost(loaded)
    assert cost.is_packed
    for length in LENGTHS:
        # joining a batch lets go of what was allocated ahead
        held = num_bytes(caches_after(loaded, length))
        assert held <= cost.row_bytes(length) <= held + cost.row_bytes(cost.step), length


def test_either_form_of_a_cache_fits_what_is_greater() -> None:
    one = CacheCost(fixed_bytes=10, slot_bytes=1, step=4, window=30)
    other = CacheCost(slot_bytes=3, step=2, window=40, min_slots=7)
    for length in (1, 5, 29, 100):
        most = max(one.bytes(length), other.bytes(length))
        assert one.or_greater(other).bytes(length) >= most
        assert one.or_greater(replace(other, window=None)).bytes(length) >= most


def test_measuring_a_model_computes_nothing(tiny: LoadedModel) -> None:
    measure_kv_cost(tiny)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    measure_kv_cost(tiny)
    assert mx.get_peak_memory() - before < 1024


def test_a_model_that_was_measured_answers_as_before(tiny: LoadedModel) -> None:
    def state() -> list[float]:
        cache = caches_after(tiny, 70)[-1]
        return [float(array.astype(mx.float32).sum()) for array in cache.state]

    before = state()
    measure_kv_cost(tiny)
    assert state() == before


def test_quantised_layers_cost_their_packed_bytes() -> None:
    def make() -> list[Any]:
        return [QuantizedKVCache(group_size=32, bits=4), KVCache()]

    probe = make()
    for cache in probe:
        write(cache, 2)
    cost = cost_of(*probe)
    for length in (1, 256, 257, 1000):
        caches = make()
        for cache in caches:
            write(cache, length)
        assert cost.row_bytes(length) == num_bytes(caches)
    assert cost.caches[0].slot_bytes < 0.2 * cost.caches[1].slot_bytes


def test_caches_inside_of_a_list_count_each_for_itself() -> None:
    inner = [KVCache(), RotatingKVCache(300)]
    for cache in inner:
        write(cache, 2)
    slot = 2 * 2 * HEAD_DIM * 4
    assert cost_of(CacheList(*inner)).row_bytes(10_000) == (10_240 + 299 + LAST_PIECE) * slot


class UndescribedCache(KVCache):
    def memory_profile(self, _: int) -> None:
        return None


def test_a_cache_of_unknown_kind_is_measured_by_two_lengths(
    load_tiny: Callable[[str], LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_tiny("llama")
    known = measure_kv_cost(loaded)
    num_layers = len(known.caches)
    monkeypatch.setattr(
        LoadedModel,
        "make_caches",
        lambda _, variant="": [UndescribedCache() for _ in range(num_layers)],
    )
    cost = measure_kv_cost(loaded)
    for length in LENGTHS:
        assert known.row_bytes(length) <= cost.row_bytes(length)
        assert cost.row_bytes(length) <= known.row_bytes(length + known.step)
