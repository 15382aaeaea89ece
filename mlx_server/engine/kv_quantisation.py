"""KV state in fewer bits: which layers take it, and which models cannot.

What mlx_vlm does in its own batches: full-attention layers are quantised but for the last one of
deep models; sliding windows and recurrent state stay as they are.
"""

from __future__ import annotations

import logging
from typing import Any

import mlx.core as mx
from mlx_vlm.models.cache import (
    ArraysCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    should_quantize_kv_layer,
)

from mlx_server.config import KVQuantisation
from mlx_server.engine.kv_caches import KVCaches
from mlx_server.errors import ModelLoadFailed
from mlx_server.kv_heads import not_quantisable

logger = logging.getLogger(__name__)

KNOWN_KINDS = (KVCache, RotatingKVCache, ArraysCache)


def quantised(caches: KVCaches, wanted: KVQuantisation) -> KVCaches:
    """Empty caches of a model, with those in their place that quantise what they are given."""
    return [_quantised_layer(cache, i, len(caches), wanted) for i, cache in enumerate(caches)]


def _quantised_layer(cache: Any, index: int, num_layers: int, wanted: KVQuantisation) -> Any:
    if type(cache) is KVCache and should_quantize_kv_layer(index, num_layers):
        return QuantizedKVCache(group_size=wanted.group_size, bits=wanted.bits)
    return cache


def as_batch_rows(caches: KVCaches) -> KVCaches:
    """The same state in the form that rows of a batch can be joined to."""
    return [
        cache.prefix_cache_merge([cache], [cache.offset])
        if type(cache) is QuantizedKVCache
        else cache
        for cache in caches
    ]


def refuse_unless_quantisable(
    language_model: Any, caches: KVCaches, wanted: KVQuantisation
) -> None:
    """Raises ModelLoadFailed if the loaded model's KV state cannot be quantised as wanted.

    Tries it on one token: families differ in what their attention takes.
    """
    if any(type(cache) not in KNOWN_KINDS for cache in caches):
        raise ModelLoadFailed(
            "This model keeps a kind of KV state that cannot be quantised. Start without --kv-bits."
        )
    trial = quantised(caches, wanted)
    if not any(type(cache) is QuantizedKVCache for cache in trial):
        raise ModelLoadFailed(
            "This model has no full-attention layers to quantise. Start without --kv-bits."
        )
    try:
        output = language_model(mx.array([[0]]), cache=trial)
        mx.eval(getattr(output, "logits", output))
    except Exception as error:
        logger.warning("KV quantisation does not work with this model: %s", error)
        raise not_quantisable(wanted) from None
