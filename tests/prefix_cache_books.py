"""What must hold of a prefix cache between any two calls."""

from __future__ import annotations

from mlx_server.engine.kv_caches import is_trimmable, num_bytes
from mlx_server.engine.prefix_cache import PrefixCache, common_length


def check_books(cache: PrefixCache) -> None:
    """Every entry is whole and counted, and none has all that another one has."""
    entries = list(cache._entries.values())
    assert cache.num_bytes == sum(num_bytes(entry.caches) for entry in entries)
    assert cache.num_bytes <= cache.max_bytes
    for entry in entries:
        offsets = {kv.offset for kv in entry.caches if hasattr(kv, "offset")}
        assert offsets <= {len(entry.keys)}
        for other in entries:
            if other is not entry and other.variant == entry.variant:
                is_part = common_length(entry.keys, other.keys) == len(entry.keys)
                is_equal = len(entry.keys) == len(other.keys)
                assert not (is_part and (is_equal or is_trimmable(other.caches)))
