"""What can be done to the KV caches of one sequence, whatever kinds its layers use."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map
from mlx_vlm.models.cache import (
    ArraysCache,
    BatchKVCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

KVCaches = list[Any]
"""The caches of one sequence, one for each layer of the model."""
# ChunkedKVCache lets go of its front and says that it can be trimmed all the same
TRIMMABLE_KINDS = (KVCache, QuantizedKVCache, RotatingKVCache)


def fork(caches: KVCaches) -> KVCaches:
    """An independent copy: MLX copies a buffer only when one of the two sides writes into it."""
    return copy.deepcopy(caches)


def leaves(caches: Iterable[Any]) -> Iterator[Any]:
    """The caches of all layers; some layers keep a list of them."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def is_trimmable(caches: KVCaches) -> bool:
    """Whether the newest positions can be taken back exactly; no for wrapped windows, recurrent
    state, and kinds that are not known to drop nothing on their way.
    """
    return all(type(c) in TRIMMABLE_KINDS and c.is_trimmable() for c in leaves(caches))


def keep_all_positions(caches: KVCaches) -> bool:
    """Whether they can go back to any position, however many come behind it."""
    return all(type(cache) is KVCache for cache in leaves(caches))


def can_be_batched(caches: KVCaches) -> bool:
    """Whether rows can be joined to these and leave them again, as mlx_vlm does it."""
    return all(map(_can_be_batched, leaves(caches)))


def _can_be_batched(cache: Any) -> bool:
    if isinstance(cache, RotatingKVCache) and cache.keep:
        # a batch has windows without a kept front
        return False
    return _is_batch(cache) or hasattr(type(cache), "merge")


def trim(caches: KVCaches, num_tokens: int) -> None:
    """Take back the newest `num_tokens` positions."""
    for cache in leaves(caches):
        if num_tokens:
            cache.trim(num_tokens)
        # the first write would have to copy the unused tail as well
        _let_go_of_tail(cache)


def compact(caches: KVCaches) -> None:
    """Let go of what is allocated ahead for positions to come, up to 256 of them a layer."""
    for cache in leaves(caches):
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
        for cache in leaves(caches)
    )


def num_bytes(caches: KVCaches) -> int:
    return sum(cache.nbytes for cache in caches)


def materialise(caches: KVCaches) -> None:
    """Run what is still lazy, so that the caches hold arrays and no graph."""
    mx.eval([cache.state for cache in caches])


def extract(caches: Iterable[Any], row: int) -> KVCaches:
    """The caches of one row of a batch; a cache that never met another row is that row's own."""
    return [_extract_one(cache, row) for cache in caches]


def _extract_one(cache: Any, row: int) -> Any:
    if isinstance(cache, CacheList):
        return CacheList(*extract(cache.caches, row))
    if not _is_batch(cache):
        return cache
    if isinstance(cache, ArraysCache):
        return _extract_arrays(cache, row)
    if type(cache) is BatchKVCache and cache.empty():
        return KVCache()
    return cache.extract(row)


def _extract_arrays(cache: ArraysCache, row: int) -> ArraysCache:
    """Copies, since a mere slice would hold the memory of all rows."""
    extracted = type(cache)(len(cache.state))
    extracted.state = [
        None if array is None else mx.contiguous(array[row : row + 1]) for array in cache.state
    ]
    return extracted


def _is_batch(cache: Any) -> bool:
    return callable(getattr(cache, "filter", None)) and callable(getattr(cache, "extend", None))
