"""Nobody is promised memory that is not there, and nobody waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_server.config import EngineConfig, KVQuantisation
from mlx_server.engine.admission import Admission
from mlx_server.engine.device import prepare_device
from mlx_server.engine.kv_caches import materialise
from mlx_server.engine.kv_cost import CacheCost, KVCost, measure_kv_cost
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.memory import KVMemory, Scratch
from mlx_server.engine.prefill import LAST_PIECE
from mlx_server.engine.sequence import RawPrompt, Sequence
from mlx_server.errors import InsufficientMemory, InvalidRequest
from mlx_server.model_dimensions import ModelDimensions
from tests.engine_runs import make_runner, make_sequence, start
from tests.scripted import Script
from tests.tiny.checkpoints import tiny_llama

MIB = 1 << 20
CHUNK = 128
NOTHING = ModelDimensions.of({})
TEN_A_TOKEN = KVCost((CacheCost(slot_bytes=10),) * 100)
PLENTY = 1 << 40
LENGTHS = (300, 700, 40, 500)


def make_memory(room: int, *, cost: KVCost = TEN_A_TOKEN, **fields: Any) -> KVMemory:
    """Without activations: a token costs 1000 bytes, and 10 more while it moves."""
    fields = {
        "limit_bytes": room + 5000,
        "weight_bytes": 5000,
        "scratch": Scratch(NOTHING, chunk=0, has_scores=False),
        "context_length": 1 << 20,
    } | fields
    return KVMemory(cost=cost, **fields)


def test_one_sequence_may_have_what_the_weights_leave() -> None:
    memory = make_memory(101_000)
    assert memory.max_total_tokens() == 99
    assert make_memory(101_000, context_length=7).max_total_tokens() == 7
    assert make_memory(-1).max_total_tokens() == 0


def test_a_prompt_that_never_fits_is_refused_with_the_numbers() -> None:
    memory = make_memory(101_000)
    with pytest.raises(InsufficientMemory) as raised:
        memory.refuse_hopeless(90, 10, param="messages")
    assert isinstance(raised.value, InvalidRequest)
    assert (raised.value.code, raised.value.param) == ("insufficient_memory", "messages")
    for part in (" 99 tokens", "has 90", "up to 10 ", "lower max_tokens"):
        assert part in raised.value.message
    with pytest.raises(InsufficientMemory) as raised:
        memory.refuse_hopeless(99, None, param="prompt")
    assert "max_tokens" not in raised.value.message


def test_what_fits_alone_is_not_refused() -> None:
    memory = make_memory(101_000)
    assert not is_refused(memory, 90, 9)
    assert not is_refused(memory, 98, None)
    assert is_refused(memory, 90, 10)


def test_an_answer_longer_than_the_context_counts_up_to_its_end() -> None:
    assert not is_refused(make_memory(101_000, context_length=90), 80, 1_000_000)
    assert is_refused(make_memory(101_000, context_length=100), 80, 1_000_000)


def is_refused(memory: KVMemory, num_prompt_tokens: int, max_tokens: int | None) -> bool:
    try:
        memory.refuse_hopeless(num_prompt_tokens, max_tokens, param="messages")
    except InsufficientMemory:
        return True
    return False


@pytest.mark.parametrize("room", [5_000, 101_000, 777_777, 10_000_000])
@pytest.mark.parametrize("step", [1, 256])
def test_what_is_not_refused_can_be_had_alone(room: int, step: int) -> None:
    cost = KVCost((CacheCost(slot_bytes=10, step=step), CacheCost(fixed_bytes=50)))
    memory = make_memory(room, cost=cost)
    most = memory.max_total_tokens()
    assert memory.reserve(1, most + 1) is False
    assert most == 0 or memory.reserve(1, most) is True


def test_a_sequence_waits_until_another_one_is_gone() -> None:
    memory = make_memory(101_000)
    assert memory.reserve(1, 30)
    assert memory.reserve(2, 30)
    assert not memory.reserve(3, 30)
    memory.release(1)
    assert memory.reserve(3, 30)
    memory.release(4)
    assert not memory.reserve(5, 1)


def test_all_rows_are_as_long_as_the_longest() -> None:
    memory = make_memory(200_000)
    assert memory.reserve(1, 100)
    assert not memory.reserve(2, 1)
    memory.release(1)
    assert memory.reserve(1, 20)
    assert memory.reserve(2, 1)
    assert memory.room_for_prefix_cache() == 200_000 - 3 * 21_000 - 4 * 210


def test_a_row_grows_while_there_is_room() -> None:
    memory = make_memory(101_000)
    assert memory.reserve(1, 40)
    assert memory.grow(1, 99)
    assert not memory.grow(1, 100)
    assert memory.grow(1, 99)
    assert memory.grow(1, 50)
    assert not memory.reserve(2, 1)


def test_the_prefix_cache_has_what_nobody_was_promised() -> None:
    memory = make_memory(101_000)
    assert memory.room_for_prefix_cache() == 101_000
    assert memory.reserve(1, 49)
    assert memory.room_for_prefix_cache() == 101_000 - 50_500
    memory.clear()
    assert memory.room_for_prefix_cache() == 101_000
    assert make_memory(-1).room_for_prefix_cache() == 0


def test_what_is_beside_the_rows_counts_until_it_is_gone() -> None:
    memory = make_memory(101_000)
    assert memory.max_total_tokens(beside=50_500) == 49
    assert not memory.reserve(1, 50, 50_500)
    assert memory.reserve(1, 49, 50_500)
    assert memory.room_for_prefix_cache() == 0
    assert not memory.grow(1, 50)
    memory.settle(1)
    assert memory.grow(1, 99)
    memory.release(1)
    assert memory.reserve(2, 49, 50_500)
    memory.clear()
    assert memory.room_for_prefix_cache() == 101_000


def test_what_somebody_holds_counts_while_he_lives() -> None:
    memory, owner, other = make_memory(101_000), Script(), Script()
    memory.hold(owner, 40_400)
    memory.hold(other, 10_100)
    assert memory.room_for_prefix_cache() == 50_500
    assert not memory.reserve(1, 50)
    assert memory.reserve(1, 49)
    memory.clear()
    assert not memory.reserve(1, 60, alone_with=(owner,))
    assert memory.reserve(1, 59, alone_with=(owner,))
    memory.release(1)
    del owner
    assert memory.reserve(1, 89)
    memory.hold(other, 0)
    assert memory.grow(1, 99)


def test_answers_that_start_from_one_prompt_need_room_for_its_state_as_well() -> None:
    memory = make_memory(101_000)
    assert memory.start_bytes(40) == 41_000
    memory.refuse_hopeless(40, 18, param="messages", beside=41_000)
    with pytest.raises(InsufficientMemory, match="holds 58 tokens"):
        memory.refuse_hopeless(40, 19, param="messages", beside=41_000)


def test_activations_are_left_room_by_the_lengths_of_chunk_and_prompt() -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "vocab_size": 300,
    }
    scratch = Scratch(ModelDimensions.of(sizes), chunk=100, has_scores=True)
    fused = Scratch(ModelDimensions.of(sizes), chunk=100, has_scores=False)
    assert scratch.bytes(1000, 1) - fused.bytes(1000, 1) == 100 * 1000 * 4 * 4
    assert scratch.bytes(1000, 2) - scratch.bytes(1000, 1) == 6 * 300 * 4
    assert fused.bytes(1000, 1, is_packed=True) - scratch.bytes(1000, 1) == 100 * 2 * 64 * 4
    assert scratch.bytes(50, 1) < scratch.bytes(100, 1) < scratch.bytes(1000, 1)


@pytest.mark.parametrize("length, is_whole", [(LAST_PIECE, False), (5 * CHUNK, True)])
def test_the_logits_of_a_prompt_s_end_are_left_room(
    tmp_path: Path, length: int, is_whole: bool
) -> None:
    """Many families compute them for all tokens of the last piece."""
    prepare_device()
    loaded = load_checkpoint("m", tiny_llama(tmp_path / "m", min_vocab_size=50_000), EngineConfig())
    loaded.model.no_chunked_prefill = is_whole
    scratch = Scratch(ModelDimensions.of_config(loaded.model.config), CHUNK, has_scores=True)
    memory = make_memory(PLENTY, cost=measure_kv_cost(loaded), scratch=scratch)
    runner = make_runner(loaded, step_size=CHUNK)
    sequence = prompt(length)
    runner.prepare(sequence)
    assert Admission(loaded, memory).reserve(sequence, None)
    mx.clear_cache()
    empty = mx.get_active_memory()
    mx.reset_peak_memory()
    start(runner, sequence)
    assert mx.get_peak_memory() - empty <= PLENTY - memory.room_for_prefix_cache()


def prompt(length: int) -> Sequence:
    return make_sequence(RawPrompt([20 + i % 50 for i in range(length)]), max_tokens=None)


def test_a_batch_never_takes_more_than_it_was_promised(
    tiny: LoadedModel,
    tiny_checkpoint: Callable[[str], Any],
) -> None:
    dimensions = ModelDimensions.read(tiny_checkpoint(tiny.id))
    watch_batch(tiny, Scratch(dimensions, chunk=CHUNK, has_scores=True))


@pytest.mark.parametrize("begin", [0, 400])
def test_nor_does_one_that_keeps_its_state_in_few_bits(tmp_path: Path, begin: int) -> None:
    prepare_device()
    config = EngineConfig(kv_quantisation=KVQuantisation(4, start=begin))
    loaded = load_checkpoint("m", tiny_llama(tmp_path / "m", head_dim=64), config)
    dimensions = ModelDimensions.of_config(loaded.model.config)
    watch_batch(loaded, Scratch(dimensions, chunk=CHUNK, has_scores=False))


def watch_batch(tiny: LoadedModel, scratch: Scratch) -> None:
    """Assert of every step of some rows what it takes, by what was promised."""
    memory = make_memory(PLENTY, cost=measure_kv_cost(tiny), scratch=scratch)
    runner = make_runner(tiny, step_size=CHUNK, cache_bytes=PLENTY)
    mx.clear_cache()
    empty = mx.get_active_memory()
    sequences = [prompt(length) for length in LENGTHS]

    def check(run: Callable[[], Any]) -> None:
        mx.reset_peak_memory()
        run()
        for batch in runner._batches.values():
            materialise(batch._batch.prompt_cache)
        promised = PLENTY - memory.room_for_prefix_cache()
        taken = mx.get_peak_memory() - empty
        assert taken <= promised + runner.prefix_cache.num_bytes
        assert promised < 12 * max(taken, MIB)

    for sequence, length in zip(sequences, LENGTHS, strict=True):
        assert memory.reserve(sequence.uid, length + 300)
        check(lambda s=sequence: start(runner, s))
        check(runner.decode)
    for _ in range(280):
        check(runner.decode)
    for sequence in sequences:
        check(lambda s=sequence: runner.drop(s))
        memory.release(sequence.uid)
