"""The bytes that are told of a checkpoint are those it takes once it is loaded."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten
from mlx_vlm.utils import load_model

from mlx_server.config import EngineConfig
from mlx_server.engine.device import cpu_float_bytes
from mlx_server.engine.loader import load_checkpoint, num_weight_bytes
from mlx_server.load_cost import LoadCost
from tests.checkpoint_folders import write_checkpoint
from tests.scripted import write_weight_header
from tests.tiny.tokenizer import write_json

Checkpoint = Callable[[str], Path]
DTYPES = ("float32", "bfloat16", "checkpoint")
EMBEDDINGS = "language_model.model.embed_tokens"


def check(folder: Path, cpu_dtype: str) -> LoadCost:
    """Load it, and compare."""
    cost = LoadCost.read(folder, cpu_float_bytes(cpu_dtype))
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    loaded = load_checkpoint("m", folder, EngineConfig(cpu_dtype=cpu_dtype))
    assert cost.weight_bytes == pytest.approx(num_weight_bytes(loaded.model), rel=0.02)
    # small tensors are unpacked several at a time
    assert cost.weight_bytes <= cost.peak_bytes
    assert mx.get_peak_memory() - before < 1.5 * cost.peak_bytes
    return cost


def stored_as(source: Path, folder: Path, dtype: mx.Dtype) -> Path:
    shutil.copytree(source, folder)
    weights = mx.load(str(source / "model.safetensors"))
    assert isinstance(weights, dict)
    mx.save_safetensors(
        str(folder / "model.safetensors"), {k: v.astype(dtype) for k, v in weights.items()}
    )
    return folder


def quantised(source: Path, folder: Path, mode: str, bits: int, group_size: int) -> Path:
    """The embeddings in eight bits, as is usual, where the mode has them."""
    shutil.copytree(source, folder)
    model = load_model(source)
    embeddings = {"bits": 8, "group_size": 32} if mode == "affine" else None

    def choose(path: str, module: Any) -> Any:
        if path == EMBEDDINGS and embeddings is not None:
            return embeddings
        return hasattr(module, "to_quantized")

    nn.quantize(model, group_size, bits, mode=mode, class_predicate=choose)
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    config = json.loads((source / "config.json").read_text())
    config["quantization"] = {"group_size": group_size, "bits": bits, "mode": mode}
    if embeddings is not None:
        config["quantization"][EMBEDDINGS] = embeddings
    write_json(folder, "config.json", config)
    return folder


@pytest.mark.parametrize("cpu_dtype", DTYPES)
def test_every_family_takes_what_was_told(
    tiny_checkpoint: Checkpoint, tiny_name: str, cpu_dtype: str
) -> None:
    check(tiny_checkpoint(tiny_name), cpu_dtype)


@pytest.mark.parametrize("cpu_dtype", DTYPES)
def test_half_precision_is_widened_for_a_cpu(
    tiny_checkpoint: Checkpoint, tmp_path: Path, cpu_dtype: str
) -> None:
    source = tiny_checkpoint("qwen3_next")
    half = check(stored_as(source, tmp_path / "m", mx.bfloat16), cpu_dtype)
    whole = LoadCost.read(source, None).weight_bytes
    assert half.weight_bytes == (whole if cpu_dtype == "float32" else whole // 2)


@pytest.mark.parametrize("cpu_dtype", DTYPES)
@pytest.mark.parametrize(("mode", "bits", "group_size"), [("affine", 4, 64), ("mxfp4", 4, 32)])
def test_quantised_weights_are_unpacked_for_a_cpu(
    tiny_checkpoint: Checkpoint,
    tmp_path: Path,
    cpu_dtype: str,
    mode: str,
    bits: int,
    group_size: int,
) -> None:
    folder = quantised(tiny_checkpoint("llama"), tmp_path / "m", mode, bits, group_size)
    check(folder, cpu_dtype)


def test_a_tied_head_that_is_stored_again_is_not_counted(
    tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_checkpoint("llama"), tmp_path / "m")
    file = folder / "model.safetensors"
    before = LoadCost.read(folder, None)
    weights = mx.load(str(file))
    assert isinstance(weights, dict)
    weights["lm_head.weight"] = mx.zeros((1000, 64))
    mx.save_safetensors(str(file), weights)
    assert LoadCost.read(folder, None) == before
    config = json.loads((folder / "config.json").read_text())
    write_json(folder, "config.json", config | {"tie_word_embeddings": False})
    assert LoadCost.read(folder, None).weight_bytes == before.weight_bytes + 256_000


def test_the_parts_of_a_checkpoint_are_added_up(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    for i in (1, 2):
        write_weight_header(folder / f"model-0000{i}-of-00002.safetensors", 1000)
    assert LoadCost.read(folder, None) == LoadCost(2000, 2000)
    # the same weights once more, which mlx_vlm leaves alone
    write_weight_header(folder / "consolidated.safetensors", 2000)
    assert LoadCost.read(folder, None) == LoadCost(2000, 2000)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [9, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, {}]},
        {"dtype": "F32", "shape": [{}], "data_offsets": [0, 4]},
    ],
)
def test_headers_of_strangers_are_no_obstacle(tmp_path: Path, entry: Any) -> None:
    folder = write_checkpoint(tmp_path / "m", {"model_type": "llama", "quantization": [1]})
    header = json.dumps({"a.weight": entry, "a.scales": entry}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert LoadCost.read(folder, 4) == LoadCost(0, 0)
    assert LoadCost.read(folder, None) == LoadCost(0, 0)
