"""A GGUF file of the llama architecture -> a checkpoint folder that mlx_vlm loads.

Reads what SmolLM2's file has: blocks of Q4_1 and Q8_0, a GPT-2 vocabulary, tied embeddings.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from safetensors.numpy import save

from mlx_server.embedded.tokenizer import build_tokenizer, tokenizer_config
from mlx_server.embedded.weights import GROUP_SIZE, Layer, read_layer
from mlx_server.progress import Report

STAGE = "convert"

# So small a model drifts off where it is left a choice, and then writes to the end of its context.
SAMPLING = {"temperature": 0.0}


def convert(gguf: Path, folder: Path, report: Report) -> None:
    """Write the checkpoint's files into the empty `folder`."""
    # Reading the vocabulary takes seconds, in which the file's number of tensors is not known yet.
    report(STAGE, 0, 1)
    reader = GGUFReader(gguf)
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    layers = _read_layers(reader, metadata, report)
    arrays = {
        f"{layer.name}.{key}": array for layer in layers for key, array in layer.arrays.items()
    }
    (folder / "model.safetensors").write_bytes(save(arrays, metadata={"format": "mlx"}))
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    _write_json(folder / "generation_config.json", _end_tokens(metadata) | SAMPLING)
    config = _model_config(metadata) | {"quantization": _quantization(layers)}
    _write_json(folder / "config.json", config)


def _read_layers(reader: GGUFReader, metadata: Mapping[str, Any], report: Report) -> list[Layer]:
    layers = []
    for number, tensor in enumerate(reader.tensors, start=1):
        layer = read_layer(
            tensor,
            num_heads=metadata["llama.attention.head_count"],
            num_kv_heads=metadata["llama.attention.head_count_kv"],
        )
        layers.append(layer)
        report(STAGE, number, len(reader.tensors))
    return layers


def _model_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    def fact(key: str) -> Any:
        return metadata[f"llama.{key}"]

    num_heads = fact("attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fact("embedding_length"),
        "intermediate_size": fact("feed_forward_length"),
        "num_hidden_layers": fact("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": fact("attention.head_count_kv"),
        "head_dim": fact("embedding_length") // num_heads,
        "max_position_embeddings": fact("context_length"),
        # GGUF has it in single precision, in which 1e-5 has more digits than were meant
        "rms_norm_eps": float(f"{fact('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": fact("rope.freq_base"),
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
        **_end_tokens(metadata),
    }


def _end_tokens(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
    }


def _quantization(layers: Sequence[Layer]) -> dict[str, Any]:
    """The most frequent number of bits, and the layers that have another."""
    bits = {layer.name: layer.bits for layer in layers if layer.bits is not None}
    ((usual, _),) = Counter(bits.values()).most_common(1)
    others = {name: _group(number) for name, number in bits.items() if number != usual}
    return {**_group(usual), **others}


def _group(bits: int) -> dict[str, int]:
    return {"group_size": GROUP_SIZE, "bits": bits}


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
