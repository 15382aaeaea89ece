"""Repacking of quantised blocks, checked against what they mean in either format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantization
from gguf import dequantize, quantize

from mlx_server.embedded import weights
from tests.small_gguf import permute

Repack = Callable[[Any], dict[str, Any]]

FORMATS = pytest.mark.parametrize(
    ("kind", "bits", "repack"),
    [
        (Quantization.Q4_1, 4, weights.repack_q4_1),
        (Quantization.Q8_0, 8, weights.repack_q8_0),
    ],
    ids=["Q4_1", "Q8_0"],
)


def in_mlx(arrays: dict[str, Any], bits: int) -> Any:
    """The values as MLX reads them."""
    weight, scales, biases = (mx.array(arrays[key]) for key in ("weight", "scales", "biases"))
    return np.array(mx.dequantize(weight, scales, biases, group_size=weights.GROUP_SIZE, bits=bits))


@FORMATS
def test_repacked_blocks_mean_the_same_numbers(
    kind: Quantization, bits: int, repack: Repack
) -> None:
    random = np.random.default_rng(seed=1)
    blocks = quantize(random.standard_normal((6, 160)).astype(np.float32), kind)
    np.testing.assert_array_equal(in_mlx(repack(blocks), bits), dequantize(blocks, kind))


@FORMATS
def test_blocks_with_every_value_mean_the_same_numbers(
    kind: Quantization, bits: int, repack: Repack
) -> None:
    num_bytes = {4: 20, 8: 34}[bits]
    blocks = np.random.default_rng(seed=2).integers(0, 256, (16, 8 * num_bytes), dtype=np.uint8)
    halves = blocks.reshape(16, 8, num_bytes)[..., : {4: 4, 8: 2}[bits]].view(np.float16)
    halves[:] = np.random.default_rng(seed=3).standard_normal(halves.shape)
    np.testing.assert_array_equal(in_mlx(repack(blocks), bits), dequantize(blocks, kind))


def test_rotary_halves_are_put_back() -> None:
    weight = np.arange(24 * 5, dtype=np.float32).reshape(24, 5)
    for num_heads in (1, 2, 3):
        permuted = permute(weight, num_heads)
        assert not np.array_equal(permuted, weight)
        np.testing.assert_array_equal(weights.unpermute(permuted, num_heads), weight)


@pytest.mark.parametrize(
    ("gguf_name", "name"),
    [
        ("token_embd.weight", "model.embed_tokens"),
        ("output_norm.weight", "model.norm"),
        ("blk.0.attn_norm.weight", "model.layers.0.input_layernorm"),
        ("blk.29.ffn_down.weight", "model.layers.29.mlp.down_proj"),
    ],
)
def test_layers_are_named_as_in_a_checkpoint(gguf_name: str, name: str) -> None:
    assert weights.layer_name(gguf_name) == name
