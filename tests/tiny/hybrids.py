"""Families that keep recurrent state in some layers, and keys and values in others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.tiny.checkpoints import CHATML_SPECIAL, CHATML_TOKENS, TEXT, finish
from tests.tiny.tokenizer import write_tokenizer

_BASE = {name: value for name, value in TEXT.items() if name != "head_dim"}
HYBRIDS: Mapping[str, dict[str, Any]] = {
    "granitemoehybrid": {
        **_BASE,
        "attention_bias": False,
        "embedding_multiplier": 1.0,
        "attention_multiplier": 0.25,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
        "rope_theta": 10000.0,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_proj_bias": False,
        "mamba_d_state": 32,
        "mamba_d_conv": 4,
        "mamba_n_groups": 2,
        "mamba_conv_bias": True,
    },
    "jamba": {
        **_BASE,
        "attn_layer_offset": 1,
        "attn_layer_period": 4,
        "expert_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_d_conv": 4,
        "mamba_d_state": 16,
        "mamba_expand": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "lfm2": {
        **_BASE,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_ff_dim": 128,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "layer_types": ["conv", "conv", "full_attention", "conv"],
    },
    "nemotron_h": {
        **TEXT,
        "attention_bias": False,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "mamba_proj_bias": False,
        "ssm_state_size": 32,
        "conv_kernel": 4,
        "n_groups": 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-5,
        "use_bias": False,
        "use_conv_bias": True,
        "hybrid_override_pattern": "M*-M",
    },
    "plamo2": {
        **_BASE,
        "hidden_size_per_head": 32,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_num_heads": 8,
        "mamba_step": 2,
    },
}


def tiny_hybrid(folder: Path, family: str) -> Path:
    """A checkpoint of one of `HYBRIDS`."""
    folder.mkdir(parents=True)
    vocab_size = write_tokenizer(folder, CHATML_SPECIAL, CHATML_TOKENS)
    config = {
        **HYBRIDS[family],
        "architectures": [family],
        "model_type": family,
        "vocab_size": vocab_size,
        "tie_word_embeddings": True,
        "eos_token_id": [2, 0],
    }
    return finish(folder, config, {"eos_token_id": [2, 0]}, 7)
