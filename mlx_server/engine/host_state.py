"""KV state as plain arrays of the host: what lies between mlx_vlm's caches and a file.

Everything here but `HostState` itself must run on the MLX thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx_vlm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from mlx_server.engine.kv_caches import KVCaches

DTYPE_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.int32: "I32",
    mx.int64: "I64",
    mx.uint8: "U8",
    mx.bool_: "BOOL",
}
KINDS = {
    kind.__name__: kind
    for kind in (ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache)
}
SLICEABLE_KINDS = (KVCache, QuantizedKVCache)
POSITIONS = -2
"""The axis of positions in the arrays of a sliceable state."""


@dataclass(frozen=True, slots=True, eq=False)
class HostArray:
    """`dtype` is the safetensors name; BF16, which numpy does not know, is held as its 16 bits."""

    dtype: str
    data: npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class HostState:
    """`layout` tells in JSON which caches the arrays make up."""

    layout: str
    arrays: tuple[HostArray, ...]

    @property
    def num_bytes(self) -> int:
        return sum(array.data.nbytes for array in self.arrays)

    def positions(self, start: int, stop: int, *, is_copy: bool = False) -> HostState:
        """Some positions of a sliceable state: a view, which holds the memory of the whole, unless
        `is_copy`.
        """
        views = ((a.dtype, a.data[..., start:stop, :]) for a in self.arrays)
        return HostState(
            self.layout,
            tuple(HostArray(dtype, view.copy() if is_copy else view) for dtype, view in views),
        )


def is_sliceable(caches: KVCaches) -> bool:
    """Whether every position has its own place in the arrays, whatever comes behind it."""
    return all(type(cache) in SLICEABLE_KINDS for cache in caches)


def can_be_stored(caches: KVCaches) -> bool:
    """No for kinds of caches whose state is not known to be all of them."""
    return all(map(_can_be_stored, caches))


def to_host(caches: KVCaches) -> HostState:
    """Views of arrays that have been evaluated: copies nothing.

    Any thread may read the views, and MLX overwrites no array that somebody holds.
    """
    arrays: list[mx.array] = []
    layout = [_node(cache, arrays) for cache in caches]
    bits = [a.view(mx.uint16) if a.dtype == mx.bfloat16 else a for a in arrays]
    mx.eval(bits)
    names = (DTYPE_NAMES[array.dtype] for array in arrays)
    return HostState(
        json.dumps(layout),
        tuple(HostArray(n, np.asarray(b)) for n, b in zip(names, bits, strict=True)),
    )


def to_caches(*pieces: HostState) -> KVCaches:
    """New caches with arrays of their own: of one state, or of the pieces of a sliceable one, which
    follow each other. Raises ValueError if they describe none.
    """
    first = pieces[0]
    forms = [(s.layout, [a.dtype for a in s.arrays]) for s in pieces]
    if any(form != forms[0] for form in forms):
        raise ValueError("pieces of different states")
    try:
        layout = json.loads(first.layout)
        # one by one, since all of them together may be large
        arrays = [_to_mlx([s.arrays[i] for s in pieces]) for i in range(len(first.arrays))]
        return [_build(node, arrays) for node in layout]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("the layout does not fit the arrays") from error


def _can_be_stored(cache: Any) -> bool:
    kind = type(cache)
    if kind is CacheList:
        return all(map(_can_be_stored, cache.caches))
    if kind is ArraysCache:
        is_plain = cache.left_padding is None and cache.lengths is None
        return is_plain and not cache.is_speculating and _are_known(cache.cache)
    if kind is QuantizedKVCache:
        return not cache.empty() and _are_known([*cache.keys, *cache.values])
    return kind in (KVCache, RotatingKVCache) and _are_known([cache.keys, cache.values])


def _are_known(arrays: Sequence[mx.array | None]) -> bool:
    return all(array is None or array.dtype in DTYPE_NAMES for array in arrays)


def _node(cache: Any, arrays: list[mx.array]) -> dict[str, Any]:
    kind = type(cache)
    if kind is CacheList:
        return {"kind": kind.__name__, "parts": [_node(part, arrays) for part in cache.caches]}
    meta = list(cache.meta_state)
    if kind is QuantizedKVCache:
        # the number of positions, which the arrays tell as well, would tell blocks apart
        meta = meta[1:]
    return {"kind": kind.__name__, "meta": meta, "state": _place(cache.state, arrays)}


def _place(tree: Any, arrays: list[mx.array]) -> Any:
    """The tree with numbers of `arrays` in the place of arrays."""
    if isinstance(tree, mx.array):
        arrays.append(tree)
        return len(arrays) - 1
    return None if tree is None else [_place(branch, arrays) for branch in tree]


def _build(node: dict[str, Any], arrays: list[mx.array]) -> Any:
    kind = KINDS[node["kind"]]
    if kind is CacheList:
        return CacheList(*(_build(part, arrays) for part in node["parts"]))
    state = _map(arrays.__getitem__, node["state"])
    meta = node["meta"]
    if kind is QuantizedKVCache:
        meta = [state[0][0].shape[POSITIONS], *meta]
    return kind.from_state(state, meta)


def _map(function: Callable[[int], mx.array], tree: Any) -> Any:
    if isinstance(tree, list):
        return [_map(function, branch) for branch in tree]
    return None if tree is None else function(tree)


def _to_mlx(pieces: Sequence[HostArray]) -> mx.array:
    data = pieces[0].data
    if len(pieces) > 1:
        data = np.concatenate([piece.data for piece in pieces], POSITIONS)
    copied = mx.array(data)
    return copied.view(mx.bfloat16) if pieces[0].dtype == "BF16" else copied
