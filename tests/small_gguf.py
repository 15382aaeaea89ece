"""A GGUF file laid out as SmolLM2's is, of a few kilobytes, and the weights it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Quantization
from gguf import GGUFWriter, dequantize, quantize
from tokenizers import pre_tokenizers

Array = npt.NDArray[np.float32]

HIDDEN, INTERMEDIATE, NUM_BLOCKS = 64, 96, 2
NUM_HEADS, NUM_KV_HEADS = 2, 1
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True, slots=True)
class SmallGguf:
    """`weights` are what a conversion must give, by their names in a checkpoint."""

    path: Path
    weights: Mapping[str, Array]


def write_gguf(path: Path) -> SmallGguf:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "llama")
    _add_metadata(writer)
    weights = {}
    random = np.random.default_rng(seed=7)
    for gguf_name, name, shape in _layout():
        weight = random.standard_normal(shape).astype(np.float32)
        weights[name] = _add_tensor(writer, gguf_name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return SmallGguf(path, weights)


def vocabulary() -> list[str]:
    joined = [merge.replace(" ", "") for merge in MERGES]
    return [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *joined]


def metadata() -> dict[str, Any]:
    """What the tokenizer is built from."""
    tokens = vocabulary()
    return {
        "llama.context_length": 128,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in CONTROL else 1 for token in tokens],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add_metadata(writer: GGUFWriter) -> None:
    facts = metadata()
    writer.add_context_length(facts["llama.context_length"])
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_block_count(NUM_BLOCKS)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(100000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(facts["tokenizer.ggml.tokens"])
    writer.add_token_types(facts["tokenizer.ggml.token_type"])
    writer.add_token_merges(facts["tokenizer.ggml.merges"])
    writer.add_bos_token_id(facts["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(facts["tokenizer.ggml.eos_token_id"])
    writer.add_unk_token_id(facts["tokenizer.ggml.unknown_token_id"])
    writer.add_pad_token_id(facts["tokenizer.ggml.padding_token_id"])
    writer.add_chat_template(facts["tokenizer.chat_template"])


def _layout() -> list[tuple[str, str, tuple[int, ...]]]:
    kv_size = HIDDEN // NUM_HEADS * NUM_KV_HEADS
    block = [
        ("attn_norm", "input_layernorm", (HIDDEN,)),
        ("attn_q", "self_attn.q_proj", (HIDDEN, HIDDEN)),
        ("attn_k", "self_attn.k_proj", (kv_size, HIDDEN)),
        ("attn_v", "self_attn.v_proj", (kv_size, HIDDEN)),
        ("attn_output", "self_attn.o_proj", (HIDDEN, HIDDEN)),
        ("ffn_norm", "post_attention_layernorm", (HIDDEN,)),
        ("ffn_gate", "mlp.gate_proj", (INTERMEDIATE, HIDDEN)),
        ("ffn_up", "mlp.up_proj", (INTERMEDIATE, HIDDEN)),
        ("ffn_down", "mlp.down_proj", (HIDDEN, INTERMEDIATE)),
    ]
    return [
        ("token_embd", "model.embed_tokens", (len(vocabulary()), HIDDEN)),
        *(
            (f"blk.{index}.{gguf_name}", f"model.layers.{index}.{name}", shape)
            for index in range(NUM_BLOCKS)
            for gguf_name, name, shape in block
        ),
        ("output_norm", "model.norm", (HIDDEN,)),
    ]


def _add_tensor(writer: GGUFWriter, name: str, weight: Array) -> Array:
    """Add it in the type that SmolLM2 has it in, and return what is left of it."""
    if weight.ndim == 1:
        writer.add_tensor(f"{name}.weight", weight)
        return weight
    kind = Quantization.Q8_0 if name == "token_embd" else Quantization.Q4_1
    num_heads = {"attn_q": NUM_HEADS, "attn_k": NUM_KV_HEADS}.get(name.rpartition(".")[2])
    stored = weight if num_heads is None else permute(weight, num_heads)
    blocks = quantize(stored, kind)
    writer.add_tensor(f"{name}.weight", blocks, raw_dtype=kind)
    kept: Array = dequantize(blocks, kind)
    order = np.arange(len(weight), dtype=np.float32)[:, None]
    if num_heads is not None:
        order = permute(order, num_heads)
    return kept[np.argsort(order[:, 0])]


def permute(weight: Array, num_heads: int) -> Array:
    """Rows i and i + half of a head's rotary halves become neighbours, as GGUF wants them."""
    size = len(weight) // num_heads
    order = [
        head * size + half * (size // 2) + index
        for head in range(num_heads)
        for index in range(size // 2)
        for half in range(2)
    ]
    return weight[order]
