"""What can be done to the KV caches of one sequence, whatever kinds its layers use."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_vlm.models.cache import ArraysCache, KVCache, QuantizedKVCache

KVCaches = list[Any]
"""The caches of one sequence, one for each layer of the model."""


def fork(caches: KVCaches) -> KVCaches:
    """An independent copy: MLX copies a buffer only when one of the two sides writes into it."""
    return copy.deepcopy(caches)


def is_trimmable(caches: KVCaches) -> bool:
    """Whether the newest positions can be taken back exactly; no for wrapped windows and recurrent
    state.
    """
    return all(cache.is_trimmable() for cache in caches)


def trim(caches: KVCaches, num_tokens: int) -> None:
    """Take back the newest `num_tokens` positions."""
    for cache in caches:
        if num_tokens:
            cache.trim(num_tokens)
        # the first write would have to copy the unused tail as well
        _let_go_of_tail(cache)


def compact(caches: KVCaches) -> None:
    """Let go of what is allocated ahead for positions to come, up to 256 of them a layer."""
    for cache in caches:
        _let_go_of_tail(cache)


def _let_go_of_tail(cache: Any) -> None:
    if type(cache) in (KVCache, QuantizedKVCache) and not cache.empty():
        # a mere slice would hold the memory of the whole
        cache.keys, cache.values = tree_map(mx.contiguous, cache.state)


def compact_bytes(caches: KVCaches) -> int:
    """What `num_bytes` will be after `compact`; computes nothing."""
    return sum(
        sum(array.nbytes for _, array in tree_flatten(cache.state))
        if type(cache) in (KVCache, QuantizedKVCache) and not cache.empty()
        else cache.nbytes
        for cache in caches
    )


def num_bytes(caches: KVCaches) -> int:
    return sum(cache.nbytes for cache in caches)


def materialise(caches: KVCaches) -> None:
    """Run what is still lazy, so that the caches hold arrays and no graph."""
    mx.eval([cache.state for cache in caches])


def extract(caches: KVCaches, row: int) -> KVCaches:
    """The caches of one row of a batch; a cache that never met another row is that row's own."""
    return [_extract_one(cache, row) for cache in caches]


def _extract_one(cache: Any, row: int) -> Any:
    if not (hasattr(cache, "left_padding") and hasattr(cache, "extract")):
        return cache
    extracted = cache.extract(row)
    if isinstance(extracted, ArraysCache):
        # a mere slice would hold the memory of all rows
        extracted.state = [mx.contiguous(array) for array in extracted.state]
    return extracted
