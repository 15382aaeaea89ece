"""States whose contents tell which ids they stand for, and what disk tiers are tried with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_vlm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache

from mlx_server.engine.disk_store import DiskStore
from mlx_server.engine.disk_tier import DiskTier, namespace
from mlx_server.engine.kv_caches import KVCaches, materialise
from mlx_server.engine.kv_folder import KVFolder
from mlx_server.engine.prefix_cache import Keys

PLENTY = 1 << 30


def keys_of(ids: Sequence[int]) -> Keys:
    return np.array(ids, dtype=np.int64)


def sliceable(ids: Sequence[int], *, dtype: mx.Dtype = mx.float32) -> KVCaches:
    """Two layers that differ in their width; fed in two pieces, so that there is room left."""
    caches: KVCaches = [KVCache(), KVCache()]
    for width, cache in enumerate(caches, 2):
        values = mx.array(list(ids), dtype=mx.float32)[None, None, :, None]
        values = mx.repeat(mx.repeat(values, width, axis=3), 2, axis=1).astype(dtype)
        cache.update_and_fetch(values[..., :1, :], -values[..., :1, :])
        if len(ids) > 1:
            cache.update_and_fetch(values[..., 1:, :], -values[..., 1:, :])
    materialise(caches)
    return caches


def quantised(ids: Sequence[int]) -> KVCaches:
    cache = QuantizedKVCache(group_size=32, bits=8)
    values = mx.repeat(mx.array(list(ids), dtype=mx.float32)[None, None, :, None], 32, axis=3)
    cache.update_and_fetch(values, -values)
    materialise([cache])
    return [cache]


def hybrid(ids: Sequence[int]) -> KVCaches:
    """A recurrent state with an empty place, a window that may have wrapped, and a plain layer."""
    recurrent, window, plain = ArraysCache(2), RotatingKVCache(max_size=8), KVCache()
    recurrent[0] = mx.array([[float(sum(ids))]])
    for i in ids:
        entry = mx.full((1, 1, 1, 2), float(i))
        window.update_and_fetch(entry, -entry)
        plain.update_and_fetch(entry, -entry)
    caches: KVCaches = [recurrent, window, plain]
    materialise(caches)
    return caches


def same(left: KVCaches, right: KVCaches) -> bool:
    """Whether kinds, positions and contents agree."""
    if [(type(c), c.meta_state) for c in left] != [(type(c), c.meta_state) for c in right]:
        return False
    ours, theirs = (tree_flatten([cache.state for cache in side]) for side in (left, right))
    return [name for name, _ in ours] == [name for name, _ in theirs] and all(
        a is b or (a.dtype == b.dtype and mx.array_equal(a, b).item())
        for (_, a), (_, b) in zip(ours, theirs, strict=True)
    )


def make_store(root: Path, max_bytes: int = PLENTY, *, max_queued_bytes: int = PLENTY) -> DiskStore:
    return DiskStore(KVFolder(root, max_bytes), max_queued_bytes=max_queued_bytes)


def make_tier(root: Path, max_bytes: int = PLENTY, *, model: str = "m") -> DiskTier:
    return DiskTier(make_store(root, max_bytes), namespace(model))


def files(root: Path) -> list[Path]:
    """The stored files, by their names' kind, then by length."""
    found = [path for path in root.rglob("*") if path.is_file()]
    return sorted(found, key=lambda p: (p.name.split("-")[0], int(p.name.split("-")[1])))


def damaged(data: bytes) -> Iterator[bytes]:
    """The bytes as they are when a write was cut off, a disk has failed or a stranger was there."""
    for length in (0, 1, 7, 8, 9, len(data) // 2, len(data) - 1):
        yield data[:length]
    for place in (0, 7, 8, 20, len(data) // 3, len(data) // 2, len(data) - 1):
        for bit in (1, 128):
            yield data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
    yield data + b"\0"
    yield b"\0" * len(data)
    yield b"\xff" * len(data)
