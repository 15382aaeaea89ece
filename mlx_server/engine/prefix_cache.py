"""KV state kept across requests, found again by the longest common prefix of its keys.

A key stands for one prompt position: the token id, or for an image token a salt made from the
picture's pixels, so that two pictures never share state. Knows nothing of models and prompts; the
caches of one entry belong to one model only, and the owner clears everything when the model goes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlx_server.engine.kv_caches import KVCaches, fork, is_trimmable, materialise, num_bytes, trim
from mlx_server.engine.status import PrefixCacheStats

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """`caches` hold exactly the first `num_tokens` positions and are the caller's to change."""

    num_tokens: int
    caches: KVCaches


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    keys: Keys
    caches: KVCaches
    num_bytes: int
    variant: str


class PrefixCache:
    """Least recently used entries leave when the bytes pass `max_bytes`; 0 keeps nothing.

    Sliding-window and recurrent caches cannot go back to an earlier position, so such an entry
    serves only prompts that begin with all of it.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, keys: Keys, variant: str = "") -> PrefixMatch | None:
        """The longest kept prefix of `keys`; never all of it, since the last token must run to give
        logits.
        """
        best_id, length = self._longest(keys, variant)
        if best_id is None:
            return None
        self._entries.move_to_end(best_id)
        entry = self._entries[best_id]
        caches = fork(entry.caches)
        trim(caches, len(entry.keys) - length)
        return PrefixMatch(length, caches)

    def peek(self, keys: Keys, variant: str = "") -> int:
        """How many positions `match` would give."""
        return self._longest(keys, variant)[1]

    def _longest(self, keys: Keys, variant: str) -> tuple[int | None, int]:
        best_id, best_length = None, 0
        for entry_id, entry in self._entries.items():
            if entry.variant != variant:
                continue
            length = min(common_length(entry.keys, keys), len(keys) - 1)
            if length < len(entry.keys) and not is_trimmable(entry.caches):
                continue
            if length > best_length:
                best_id, best_length = entry_id, length
        return best_id, best_length

    def insert(self, keys: Keys, caches: KVCaches, variant: str = "") -> None:
        """Keep `caches`, which hold exactly the positions of `keys`, and now belong to the prefix
        cache.
        """
        if len(keys) == 0 or self.max_bytes == 0 or self._is_served(keys, variant):
            return
        materialise(caches)
        entry = _Entry(keys, caches, num_bytes(caches), variant)
        if entry.num_bytes > self.max_bytes:
            return
        self._drop_covered_by(entry)
        self._entries[self._next_id] = entry
        self._next_id += 1
        self.num_bytes += entry.num_bytes
        while self.num_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def stats(self) -> PrefixCacheStats:
        return PrefixCacheStats(
            num_entries=len(self._entries), num_bytes=self.num_bytes, max_bytes=self.max_bytes
        )

    def clear(self, *, disk: bool = False) -> None:
        self._entries.clear()
        self.num_bytes = 0

    def _is_served(self, keys: Keys, variant: str) -> bool:
        """Whether a longer entry that can be trimmed back holds these positions as well."""
        for entry_id, entry in self._entries.items():
            holds_them = common_length(entry.keys, keys) == len(keys) < len(entry.keys)
            if entry.variant == variant and holds_them and is_trimmable(entry.caches):
                self._entries.move_to_end(entry_id)
                return True
        return False

    def _drop_covered_by(self, new: _Entry) -> None:
        """Forget entries that `new` serves as well: equal ones, and shorter ones if `new` can be
        trimmed back.
        """
        for entry_id, entry in list(self._entries.items()):
            covered = entry.variant == new.variant and common_length(entry.keys, new.keys) == len(
                entry.keys
            )
            if covered and (len(entry.keys) == len(new.keys) or is_trimmable(new.caches)):
                self._drop(entry_id)

    def _drop(self, entry_id: int) -> None:
        self.num_bytes -= self._entries.pop(entry_id).num_bytes


def common_length(left: Keys, right: Keys) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(np.argmax(differs)) if differs.any() else length
