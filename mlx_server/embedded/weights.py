"""The weights of a GGUF file of the llama architecture, named and packed as MLX keeps them.

A block of 32 quantised values becomes an affine group of 32: the same numbers in another order.
What is not quantised is in single precision, since MLX computes in the type of the scales and
SmolLM2's activations reach 25,000, where half precision counts in steps of 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quantization
from gguf import ReaderTensor

Array = npt.NDArray[Any]

GROUP_SIZE = 32

# The low halves of the bytes are the first 16 values, the high halves the others.
Q4_1_BLOCK = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("values", "u1", 16)])
Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("values", "i1", 32)])

NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class Layer:
    """`arrays` are by the last part of their names; `bits` is None where nothing is quantised."""

    name: str
    arrays: Mapping[str, Array]
    bits: int | None


def read_layer(tensor: ReaderTensor, *, num_heads: int, num_kv_heads: int) -> Layer:
    name = layer_name(tensor.name)
    arrays, bits = _repack(tensor.data, tensor.tensor_type)
    num_rotated = {"q_proj": num_heads, "k_proj": num_kv_heads}.get(name.rpartition(".")[2])
    if num_rotated is not None:
        arrays = {key: unpermute(array, num_rotated) for key, array in arrays.items()}
    return Layer(name, arrays, bits)


def layer_name(gguf_name: str) -> str:
    """Of `blk.3.attn_q.weight` it is `model.layers.3.self_attn.q_proj`."""
    *block, part, _ = gguf_name.split(".")
    return ".".join(("model", *(["layers", block[1]] if block else []), NAMES[part]))


def unpermute(array: Array, num_heads: int) -> Array:
    """Put the rows of each head back into two halves; GGUF has the halves' rows alternate."""
    pairs = array.reshape(num_heads, -1, 2, array.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _repack(data: Array, kind: Quantization) -> tuple[dict[str, Array], int | None]:
    match kind:
        case Quantization.Q4_1:
            return repack_q4_1(data), 4
        case Quantization.Q8_0:
            return repack_q8_0(data), 8
        case Quantization.F32:
            return {"weight": np.ascontiguousarray(data)}, None
    raise ValueError(f"tensors of type {kind.name} are not read")


def repack_q4_1(data: Array) -> dict[str, Array]:
    blocks = data.view(Q4_1_BLOCK)
    values = np.concatenate([blocks["values"] & 15, blocks["values"] >> 4], axis=-1)
    packed = values[..., ::2] | values[..., 1::2] << 4
    return _affine(packed, blocks["scale"], blocks["minimum"])


def repack_q8_0(data: Array) -> dict[str, Array]:
    blocks = data.view(Q8_0_BLOCK)
    values = blocks["values"].astype(np.uint8) ^ 128
    return _affine(values, blocks["scale"], blocks["scale"] * np.float32(-128))


def _affine(packed: Array, scales: Array, biases: Array) -> dict[str, Array]:
    """`packed` is by rows and groups; a weight is its value times the scale, plus the bias."""
    words = np.ascontiguousarray(packed).reshape(len(packed), -1).view("<u4")
    return {
        "weight": words,
        "scales": scales.astype(np.float32),
        "biases": biases.astype(np.float32),
    }
