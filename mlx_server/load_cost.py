"""What a checkpoint will take of memory, told from the headers of its weight files.

The files are written by strangers: what makes no sense counts as nothing, and the loader will say
so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_server.checkpoint_files import read_header, read_json, weight_files

DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The types that change with `--cpu-dtype`; whole numbers and packed weights do not."""
PACKED = "U32"
BITS_OF_PACKED = 32
BITS_IF_UNSAID = 4
UNWIDENED_BYTES = 2
"""Weights whose scales are no floats (mxfp4, nvfp4) are unpacked to bfloat16."""


@dataclass(frozen=True, slots=True)
class LoadCost:
    """`peak_bytes` are about those of the moment in which old and new forms of the weights are
    there.
    """

    weight_bytes: int
    peak_bytes: int

    @classmethod
    def read(cls, folder: Path, float_bytes: int | None) -> LoadCost:
        """`float_bytes` is the size of a number after the conversion for a CPU, which unpacks what
        is quantised; None leaves everything as it is stored.
        """
        config = read_json(folder / "config.json")
        tensors = _tensors(folder, config)
        stored = sum(tensor.num_bytes for tensor in tensors.values())
        if float_bytes is None:
            return cls(stored, stored)
        quantization = _quantization(config)
        weight_bytes, peak_bytes, largest = 0, 0, 0
        for name, tensor in tensors.items():
            converted = _converted_bytes(name, tensors, float_bytes, quantization)
            if converted is None:
                weight_bytes += tensor.num_bytes
                peak_bytes += tensor.num_bytes
                continue
            unpacked = converted
            if tensor.dtype == PACKED:
                # the unpacking goes through single precision
                unpacked = converted * DTYPE_BYTES["F32"] // float_bytes
                largest = max(largest, unpacked)
            weight_bytes += converted
            peak_bytes += _widened_bytes(name, tensor, float_bytes) + unpacked
        return cls(weight_bytes, peak_bytes + largest)


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    num_elements: int
    num_bytes: int


def _tensors(folder: Path, config: Mapping[str, Any]) -> dict[str, _Tensor]:
    found = {}
    for file in weight_files(folder):
        for name, entry in read_header(file).items():
            tensor = _parse(entry)
            if tensor is not None and name != "__metadata__":
                found[name] = tensor
    if _is_tied(config):
        # some checkpoints store the tied head a second time, and every loader drops it
        found = {name: t for name, t in found.items() if ".lm_head." not in f".{name}"}
    return found


def _parse(entry: Any) -> _Tensor | None:
    try:
        begin, end = entry["data_offsets"]
        num_elements = math.prod(entry["shape"])
        return _Tensor(str(entry["dtype"]), int(num_elements), max(0, int(end) - int(begin)))
    except (KeyError, TypeError, ValueError):
        return None


def _is_tied(config: Mapping[str, Any]) -> bool:
    text_config = config.get("text_config")
    parts = (config, text_config if isinstance(text_config, dict) else {})
    return any(part.get("tie_word_embeddings") is True for part in parts)


def _quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("quantization", "quantization_config"):
        if isinstance(config.get(key), dict):
            value: Mapping[str, Any] = config[key]
            return value
    return {}


def _converted_bytes(
    name: str, tensors: Mapping[str, _Tensor], float_bytes: int, quantization: Mapping[str, Any]
) -> int | None:
    """Bytes after the conversion; None for a tensor that stays as it is."""
    tensor = tensors[name]
    module, _, kind = name.rpartition(".")
    weight, scales = tensors.get(f"{module}.weight"), tensors.get(f"{module}.scales")
    if scales is not None and weight is not None and weight.dtype == PACKED:
        if kind in ("scales", "biases"):
            return 0
        if kind == "weight":
            num = tensor.num_elements * BITS_OF_PACKED // _bits(quantization, module)
            return num * (float_bytes if scales.dtype in DTYPE_BYTES else UNWIDENED_BYTES)
    size = DTYPE_BYTES.get(tensor.dtype)
    if size is None or size == float_bytes:
        return None
    return tensor.num_elements * float_bytes


def _bits(quantization: Mapping[str, Any], module: str) -> int:
    own = quantization.get(module)
    for part in (own if isinstance(own, dict) else {}, quantization):
        bits = part.get("bits")
        if isinstance(bits, int) and 0 < bits <= BITS_OF_PACKED:
            return bits
    return BITS_IF_UNSAID


def _widened_bytes(name: str, tensor: _Tensor, float_bytes: int) -> int:
    """Scales take the wider type before the weights are unpacked."""
    is_scale = name.endswith((".scales", ".biases")) and tensor.dtype in DTYPE_BYTES
    return max(tensor.num_bytes, tensor.num_elements * float_bytes * is_scale)
