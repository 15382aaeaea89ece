"""Whether attention heads can be quantised, as far as a checkpoint's configuration says."""

from __future__ import annotations

from mlx_server.config import KVQuantisation
from mlx_server.errors import ModelLoadFailed
from mlx_server.model_dimensions import ModelDimensions


def refuse_heads_that_no_group_divides(dimensions: ModelDimensions, wanted: KVQuantisation) -> None:
    """Raises ModelLoadFailed; a configuration that does not give their size is let through."""
    if dimensions.head_dim % wanted.group_size:
        raise not_quantisable(wanted)


def not_quantisable(wanted: KVQuantisation) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"This model's KV state cannot be quantised to {wanted.bits} bits in groups of "
        f"{wanted.group_size}. Choose a --kv-group-size that divides the size of its attention "
        "heads, or start without --kv-bits."
    )
