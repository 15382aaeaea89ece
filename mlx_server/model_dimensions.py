"""The sizes of a text model, from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_server.checkpoint_files import read_json

MAX_SIZE = 1 << 24


@dataclass(frozen=True, slots=True)
class ModelDimensions:
    """0 where the configuration does not say. `intermediate_size` is that of all experts which one
    token meets; `kv_numbers` is how many numbers of KV state one position has, in all layers, and
    `state_numbers` how many a text of any length has. Hybrids are taken to have both in each layer.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    head_dim: int
    vocab_size: int
    kv_numbers: int
    state_numbers: int = 0

    @classmethod
    def read(cls, folder: Path) -> ModelDimensions:
        """What the file says; some families leave out what the class that reads it has by
        default.
        """
        config = read_json(folder / "config.json")
        text_config = config.get("text_config") or config.get("llm_config")
        parts = (text_config, config) if isinstance(text_config, dict) else (config,)
        return cls.of(*parts)

    @classmethod
    def of_config(cls, config: Any) -> ModelDimensions:
        """`config` is that of a loaded model, which knows the defaults of its family."""
        parts = (getattr(config, "text_config", None), config)
        return cls.of(*(p if isinstance(p, dict) else vars(p) for p in parts if p is not None))

    @classmethod
    def of(cls, *parts: Mapping[str, Any]) -> ModelDimensions:
        """`parts` are asked in turn for each size."""

        def size(*keys: str) -> int:
            named = ((part, key) for key in keys for part in parts)
            return next((n for part, key in named if (n := _size(part.get(key))) > 0), 0)

        num_heads = size("num_attention_heads")
        head_dim = size("head_dim", "hidden_size_per_head")
        head_dim = head_dim or (size("hidden_size") // num_heads if num_heads else 0)
        kv_heads = size("num_key_value_heads") or num_heads
        # multi-head latent attention keeps one compressed vector for all heads
        latent = size("kv_lora_rank")
        per_layer = latent + size("qk_rope_head_dim") if latent else 2 * kv_heads * head_dim
        routed = size("moe_intermediate_size") * size("num_experts_per_tok")
        return cls(
            hidden_size=size("hidden_size"),
            intermediate_size=max(size("intermediate_size"), routed),
            num_heads=num_heads,
            head_dim=head_dim,
            vocab_size=size("vocab_size"),
            kv_numbers=size("num_hidden_layers") * per_layer,
            state_numbers=size("num_hidden_layers") * _state_numbers(size),
        )


def _state_numbers(size: Callable[..., int]) -> int:
    """What one layer keeps of all that it has read: a recurrent state, and the newest inputs of the
    convolution before it.
    """
    return max(_mamba_numbers(size), _delta_rule_numbers(size), _convolution_numbers(size))


def _mamba_numbers(size: Callable[..., int]) -> int:
    heads = size("mamba_n_heads", "mamba_num_heads", "num_heads")
    head_dim = size("mamba_d_head", "mamba_head_dim", "hidden_size_per_head", "head_dim")
    expanded = size("mamba_expand", "expand") * size("hidden_size")
    inner = max(size("mamba_d_ssm"), heads * head_dim, expanded)
    state = size("mamba_d_state", "ssm_state_size", "state_size")
    # files leave out that there is one group
    in_groups = 2 * max(1, size("mamba_n_groups", "n_groups")) * state
    return inner * state + size("mamba_d_conv", "conv_kernel") * (inner + in_groups)


def _delta_rule_numbers(size: Callable[..., int]) -> int:
    key_dim, value_heads = size("linear_key_head_dim"), size("linear_num_value_heads")
    values = value_heads * size("linear_value_head_dim")
    channels = 2 * size("linear_num_key_heads") * key_dim + values
    return values * key_dim + size("linear_conv_kernel_dim") * channels


def _convolution_numbers(size: Callable[..., int]) -> int:
    return size("conv_L_cache") * size("hidden_size")


def _size(value: Any) -> int:
    is_size = isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_SIZE
    return value if is_size else 0
