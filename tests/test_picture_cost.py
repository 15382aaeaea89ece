"""Pictures have their memory before they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from mlx_server.engine.kv_cost import measure_kv_cost
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.memory import Scratch
from mlx_server.engine.picture_cost import PictureCost, VisionTower
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import ChatPrompt, RawPrompt
from mlx_server.engine.sequence import Sequence as Asked
from mlx_server.errors import InsufficientMemory
from mlx_server.model_dimensions import ModelDimensions
from tests.engine_runs import decode, make_sequence, picture, start, user
from tests.test_memory import make_memory

PLENTY = 1 << 40
CHUNK = 128
Load = Callable[[str], LoadedModel]


@pytest.fixture(params=["gemma3", "qwen3_vl", "qwen2_5_vl", "glm4v"])
def seeing(request: pytest.FixtureRequest, load_tiny: Load) -> LoadedModel:
    return load_tiny(str(request.param))


def make_runner(loaded: LoadedModel, room: int = PLENTY) -> Runner:
    dimensions = ModelDimensions.of_config(loaded.model.config)
    memory = make_memory(
        room,
        cost=measure_kv_cost(loaded),
        scratch=Scratch(dimensions, chunk=CHUNK, has_scores=True),
        context_length=loaded.context_length,
    )
    return Runner(loaded, prefill_step_size=CHUNK, prefix_cache=PrefixCache(0), memory=memory)


def look(*sizes: int, **fields: Any) -> Asked:
    pictures = [picture("red", size) for size in sizes]
    return make_sequence(ChatPrompt((user("what?", len(sizes)),)), pictures, **fields)


def promised(runner: Runner) -> int:
    return PLENTY - runner.memory.room_for_prefix_cache()


@pytest.mark.parametrize("sizes", [(64,), (240,), (64, 160, 240), (240,) * 6], ids=str)
def test_a_prompt_with_pictures_never_takes_more_than_it_was_promised(
    seeing: LoadedModel, sizes: Sequence[int]
) -> None:
    runner, sequence = make_runner(seeing), look(*sizes)
    runner.prepare(sequence)
    arrays = [value for _, value in tree_flatten(dict(sequence.prompt.inputs))]
    mx.eval(arrays)
    assert promised(runner) == sum(array.nbytes for array in arrays) == sequence.picture_bytes
    assert runner.reserve(sequence)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    most = promised(runner) - sequence.picture_bytes
    start(runner, sequence)
    taken = mx.get_peak_memory() - before
    assert taken <= most < 8 * taken


def test_what_only_the_prefill_needs_is_given_back_after_it(load_tiny: Load) -> None:
    runner, sequence = make_runner(load_tiny("qwen3_vl")), look(240)
    runner.prepare(sequence)
    pictures = VisionTower.of(runner.loaded).cost(sequence.prompt)
    assert runner.reserve(sequence)
    most = promised(runner)
    start(runner, sequence)
    assert promised(runner) == most - pictures.pass_bytes
    decode(runner)
    runner.drop(sequence)
    assert promised(runner) == pictures.held_bytes
    del sequence
    assert promised(runner) == 0


def test_text_costs_nothing_beside_itself(load_tiny: Load) -> None:
    loaded = load_tiny("qwen3_vl")
    prompt = PreparedPrompt([1, 2], np.array([1, 2]))
    assert VisionTower.of(loaded).cost(prompt) == PictureCost()


def room_for(sequence: Asked, loaded: LoadedModel) -> int:
    """What it is promised where there is plenty."""
    runner = make_runner(loaded)
    runner.prepare(sequence)
    assert runner.reserve(sequence)
    return promised(runner)


def test_pictures_that_never_fit_are_refused(load_tiny: Load) -> None:
    loaded = load_tiny("qwen3_vl")
    room = room_for(look(240), loaded)
    make_runner(loaded, room).prepare(look(240))
    with pytest.raises(InsufficientMemory, match="smaller pictures"):
        make_runner(loaded, room - 10_000).prepare(look(240))
    text = make_sequence(RawPrompt([9] * 80))
    make_runner(loaded, room - 10_000).prepare(text)


def test_pictures_that_do_not_fit_now_wait(load_tiny: Load) -> None:
    loaded = load_tiny("qwen3_vl")
    runner = make_runner(loaded, room_for(look(240), loaded))
    first, second = look(240), look(240)
    runner.prepare(first)
    assert runner.reserve(first)
    start(runner, first)
    runner.prepare(second)
    assert not runner.reserve(second)
    decode(runner)
    runner.drop(first)
    assert runner.reserve(second), "alone, although the prompt of the first is still held"


def test_the_sizes_of_a_tower_are_found_under_the_names_of_its_family(load_tiny: Load) -> None:
    tower = VisionTower.of(load_tiny("qwen3_vl"))
    assert (tower.hidden_size, tower.num_heads, tower.patch_numbers) == (64, 4, 3 * 16 * 16)
    assert (tower.intermediate_size, tower.num_features) == (128, 1)
    assert VisionTower.of(load_tiny("gemma3")).patch_numbers == 3 * 14 * 14


def test_scores_grow_with_the_largest_picture_and_not_with_their_number(load_tiny: Load) -> None:
    tower = VisionTower.of(load_tiny("qwen3_vl"))
    blind = replace(tower, has_scores=False)

    def scores(*grids: tuple[int, int, int]) -> int:
        pixels = mx.zeros((sum(h * w for _, h, w in grids), 8))
        inputs = {"pixel_values": pixels, "image_grid_thw": mx.array(grids)}
        prompt = PreparedPrompt([1], np.array([1]), inputs=inputs)
        return tower.cost(prompt).pass_bytes - blind.cost(prompt).pass_bytes

    assert scores((1, 4, 4), (1, 8, 8)) == scores((1, 8, 8)) == 2 * 4 * 64 * 64 * 4
