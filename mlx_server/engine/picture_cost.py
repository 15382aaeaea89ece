"""What the pictures of a prompt take of memory beside the KV state of their tokens.

An estimate, from the sizes of the processor's arrays and of the vision tower, all of it taken for
single precision: the arrays themselves, which are there from the preparation of the prompt to the
end of its answers; and while it is prefilled, copies of them in patches, what one layer of the
tower keeps of all patches, the scores of its attention where no fused kernel runs, and the
embeddings with what the pictures' features have become. Towers of several parts, and those that cut
pictures again on their own, may take more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from mlx_server.engine.device import FUSED_HEAD_DIMS, has_fused_attention
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.model_dimensions import ModelDimensions

FLOAT32_BYTES = 4
# The pixels in the model's type, in patches, and unrolled for the first convolution.
NUM_PIXEL_COPIES = 3
# The residual, its norm, queries, keys and values before and behind their rotation, and the output.
NUM_HIDDEN = 8
NUM_INTERMEDIATE = 3
# The scores, and their softmax.
NUM_SCORES = 2
# Embeddings of the text, those with the pictures' features in them, and the features.
NUM_EMBEDDINGS = 3
PATCH_SIZE_IF_UNSAID = 14
MLP_RATIO_IF_UNSAID = 4
TOWERS = ("vision_tower", "vision_model", "visual", "vision", "vision_encoder")


@dataclass(frozen=True, slots=True)
class PictureCost:
    """`held_bytes` from the preparation of a prompt on, `pass_bytes` more while it is prefilled."""

    held_bytes: int = 0
    pass_bytes: int = 0


@dataclass(frozen=True, slots=True)
class VisionTower:
    """`patch_numbers` are those of the pixels of a patch; `has_scores` says that attention keeps
    the scores of all patches of a picture; `text_size` is the width of a text embedding, of which
    some models keep one for each of `num_features` layers of the tower.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_numbers: int
    has_scores: bool
    text_size: int
    num_features: int

    @classmethod
    def of(cls, loaded: LoadedModel) -> VisionTower:
        config = loaded.model.config
        vision = _as_mapping(getattr(config, "vision_config", None))
        text_size = ModelDimensions.of_config(config).hidden_size
        hidden = max(_size(vision, "embed_dim"), _size(vision, "hidden_size")) or text_size
        num_heads = _size(vision, "num_heads", "num_attention_heads") or 1
        patch = _size(vision, "patch_size", "spatial_patch_size") or PATCH_SIZE_IF_UNSAID
        channels = _size(vision, "in_channels", "in_chans", "num_channels") or 3
        head_dim = _size(vision, "head_dim") or hidden // num_heads
        said = max(_size(vision, "intermediate_size"), _size(vision, "out_hidden_size"))
        ratio = _size(vision, "mlp_ratio") or MLP_RATIO_IF_UNSAID
        return cls(
            hidden_size=hidden,
            intermediate_size=said or ratio * hidden,
            num_heads=num_heads,
            patch_numbers=channels * patch * patch,
            has_scores=not has_fused_attention(_padded(loaded.model, head_dim)),
            text_size=text_size,
            num_features=len(vision.get("deepstack_visual_indexes") or ()),
        )

    def cost(self, prompt: PreparedPrompt) -> PictureCost:
        """Nothing without pictures."""
        arrays = [a for _, a in tree_flatten(dict(prompt.inputs)) if hasattr(a, "nbytes")]
        if not arrays:
            return PictureCost()
        pixels = [array for array in arrays if _is_floating(array)]
        num_pixels = sum(array.size for array in pixels)
        groups = self._groups(prompt.inputs, pixels)
        num_patches = sum(num * size for num, size in groups)
        layer = NUM_HIDDEN * self.hidden_size + NUM_INTERMEDIATE * self.intermediate_size
        scores = max((num * size * size for num, size in groups), default=0) * self.has_scores
        embeddings = len(prompt) * self.text_size * (NUM_EMBEDDINGS + self.num_features)
        numbers = (
            NUM_PIXEL_COPIES * num_pixels
            + num_patches * layer
            + NUM_SCORES * self.num_heads * scores
            + embeddings
        )
        return PictureCost(sum(array.nbytes for array in arrays), numbers * FLOAT32_BYTES)

    def _groups(self, inputs: Mapping[str, Any], pixels: list[Any]) -> list[tuple[int, int]]:
        """How many pictures of how many patches each go through attention in one call."""
        grid = inputs.get("image_grid_thw")
        if grid is not None:
            return [(1, math.prod(map(int, sizes))) for sizes in np.asarray(grid).reshape(-1, 3)]
        groups = []
        for array in pixels:
            num = math.prod(array.shape[:-3]) if array.ndim > 3 else 1
            groups.append((num, -(-array.size // (num * self.patch_numbers))))
        return groups


def _padded(model: Any, head_dim: int) -> int:
    """Some towers widen their heads to what a fused kernel takes."""
    tower = next((getattr(model, name) for name in TOWERS if hasattr(model, name)), None)
    module = sys.modules.get(type(tower).__module__)
    if not hasattr(module, "ensure_fused_sdpa"):
        return head_dim
    return next((fused for fused in FUSED_HEAD_DIMS if fused >= head_dim), head_dim)


def _as_mapping(config: Any) -> Mapping[str, Any]:
    if config is None:
        return {}
    known: Mapping[str, Any] = config if isinstance(config, Mapping) else vars(config)
    return known


def _size(config: Mapping[str, Any], *keys: str) -> int:
    """The first of them that is a size, or the side of a square."""
    for key in keys:
        value = config.get(key)
        if isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 1:
            return math.ceil(value)
    return 0


def _is_floating(array: Any) -> bool:
    if isinstance(array, mx.array):
        return mx.issubdtype(array.dtype, mx.floating)
    return np.issubdtype(array.dtype, np.floating)
