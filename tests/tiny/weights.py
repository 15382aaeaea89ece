"""Seeded noise in the shape of a model's parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map


def write_weights(
    folder: Path, config: dict[str, Any], *, seed: int = 7, scale: float = 0.08
) -> None:
    from mlx_vlm.utils import get_model_and_args, update_module_configs

    architecture, *_ = get_model_and_args(config)
    model_config = architecture.ModelConfig.from_dict(config)
    model_config = update_module_configs(model_config, architecture, config, ["text", "vision"])
    mx.random.seed(seed)
    model = architecture.Model(model_config)

    def noise(weight: mx.array) -> mx.array:
        return (
            mx.random.normal(weight.shape) * scale if weight.ndim > 1 else weight.astype(mx.float32)
        )

    params = dict(tree_flatten(tree_map(noise, model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), params, metadata={"format": "mlx"})
