"""The conversion of a whole file, as the programs that read the folder see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_server.checkpoint import CheckpointFacts
from mlx_server.checkpoint_files import missing_file
from mlx_server.config import EngineConfig
from mlx_server.embedded.convert import convert
from mlx_server.engine.loader import load_checkpoint
from tests.small_gguf import HIDDEN, NUM_BLOCKS, SmallGguf, write_gguf


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> SmallGguf:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf")


@pytest.fixture(scope="module")
def checkpoint(gguf: SmallGguf, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    convert(gguf.path, folder, lambda stage, done, total: None)
    return folder


def test_the_folder_is_a_complete_checkpoint(checkpoint: Path) -> None:
    assert missing_file(checkpoint) is None
    facts = CheckpointFacts.read(checkpoint)
    assert facts.model_type == "llama"
    assert facts.context_length == 128
    assert facts.chat_template is not None
    assert facts.is_generator
    assert not facts.has_remote_code


def test_every_weight_is_there_and_means_the_same_numbers(
    gguf: SmallGguf, checkpoint: Path
) -> None:
    quantization = json.loads((checkpoint / "config.json").read_text())["quantization"]
    arrays: Any = mx.load(str(checkpoint / "model.safetensors"))
    assert {key.rpartition(".")[0] for key in arrays} == set(gguf.weights)
    for name, expected in gguf.weights.items():
        weight, scales = arrays[f"{name}.weight"], arrays.get(f"{name}.scales")
        if scales is not None:
            group = quantization.get(name, quantization)
            weight = mx.dequantize(
                weight,
                scales,
                arrays[f"{name}.biases"],
                group_size=group["group_size"],
                bits=group["bits"],
            )
        np.testing.assert_array_equal(np.array(weight), expected, err_msg=name)


def test_the_loaded_model_computes_with_these_weights(gguf: SmallGguf, checkpoint: Path) -> None:
    loaded = load_checkpoint("small", checkpoint, EngineConfig(cpu_dtype="float32"))
    assert loaded.stop_token_ids == {2}
    layers = loaded.model.language_model.model.layers
    assert len(layers) == NUM_BLOCKS
    columns = np.array(layers[1].self_attn.q_proj(mx.eye(HIDDEN)))
    expected = gguf.weights["model.layers.1.self_attn.q_proj"]
    np.testing.assert_allclose(columns.T, expected, atol=1e-5)


def test_the_decimal_number_that_was_meant_is_restored(checkpoint: Path) -> None:
    assert json.loads((checkpoint / "config.json").read_text())["rms_norm_eps"] == 1e-5


def test_progress_counts_the_tensors(gguf: SmallGguf, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int]] = []
    convert(gguf.path, tmp_path, lambda *report: reports.append(report))
    num_tensors = len(gguf.weights)
    assert reports == [
        ("convert", 0, 1),
        *(("convert", number, num_tensors) for number in range(1, num_tensors + 1)),
    ]
