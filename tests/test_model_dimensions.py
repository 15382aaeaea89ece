"""Sizes are read where a family writes them, and strangers' nonsense is no size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import ArraysCache
from mlx_vlm.models.gemma3.config import TextConfig

from mlx_server.engine.kv_caches import leaves, materialise, num_bytes
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.model_dimensions import ModelDimensions
from tests.checkpoint_folders import write_checkpoint
from tests.conftest import MORE_FAMILIES, TINY_MODELS
from tests.tiny.hybrids import HYBRIDS

FLOAT32_BYTES = 4
SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
}


def test_sizes_of_a_plain_decoder(tmp_path: Path) -> None:
    found = ModelDimensions.read(write_checkpoint(tmp_path / "m", SIZES))
    assert found == ModelDimensions(4096, 14336, 32, 128, 128256, 32 * 2 * 8 * 128)


def test_the_text_model_inside_of_a_vision_model_comes_first(tmp_path: Path) -> None:
    config = {"hidden_size": 1, "vocab_size": 7, "text_config": {"hidden_size": 64}}
    found = ModelDimensions.read(write_checkpoint(tmp_path / "m", config))
    assert (found.hidden_size, found.vocab_size) == (64, 7)


def test_an_expert_model_runs_several_experts_a_token() -> None:
    sizes = {"intermediate_size": 100, "moe_intermediate_size": 64, "num_experts_per_tok": 8}
    assert ModelDimensions.of(sizes).intermediate_size == 512


def test_latent_attention_keeps_one_vector_for_all_heads() -> None:
    sizes = SIZES | {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert ModelDimensions.of(sizes).kv_numbers == 32 * 576


@pytest.mark.parametrize("value", [None, "64", -1, 0, 1.5, True, 1 << 40, [64], {}])
def test_what_is_no_size_counts_as_unsaid(value: Any) -> None:
    keys = ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
    assert ModelDimensions.of(dict.fromkeys(keys, value)) == ModelDimensions.of({})


def test_a_loaded_model_knows_at_least_what_its_file_says(
    tiny: LoadedModel, tiny_checkpoint: Callable[[str], Path]
) -> None:
    of_file = ModelDimensions.read(tiny_checkpoint(tiny.id))
    of_model = ModelDimensions.of_config(tiny.model.config)
    assert astuple(of_model)[:5] == astuple(of_file)[:5]


def test_what_a_file_leaves_to_its_family_is_known_of_the_loaded_model() -> None:
    written = {"hidden_size": 2560, "num_hidden_layers": 34, "intermediate_size": 10240}
    assert ModelDimensions.of(written).num_heads == 0
    config = TextConfig.from_dict({"model_type": "gemma3_text", **written})
    assert ModelDimensions.of_config(config).num_heads == config.num_attention_heads > 0
    inner = SimpleNamespace(text_config={"hidden_size": 64}, hidden_size=7)
    assert ModelDimensions.of_config(inner).hidden_size == 64


@pytest.mark.parametrize("name", [*TINY_MODELS, *MORE_FAMILIES, *HYBRIDS])
def test_state_by_the_configuration_is_never_less_than_that_of_the_caches(
    name: str, load_tiny: Callable[[str], LoadedModel], tiny_checkpoint: Callable[[str], Path]
) -> None:
    of_file = ModelDimensions.read(tiny_checkpoint(name))
    loaded = load_tiny(name)
    caches = loaded.make_caches()
    # as many as are allocated at a time, so that none is counted that nobody asked for
    ids = mx.array([[20 + i % 50 for i in range(256)]])
    loaded.language_model(ids, cache=caches)
    materialise(caches)
    recurrent = sum(c.nbytes for c in leaves(caches) if isinstance(c, ArraysCache))
    for sizes in (of_file, ModelDimensions.of_config(loaded.model.config)):
        assert sizes.state_numbers * FLOAT32_BYTES >= recurrent
        assert sizes.kv_numbers * FLOAT32_BYTES * 256 >= num_bytes(caches) - recurrent
        assert bool(sizes.state_numbers) == bool(recurrent)
