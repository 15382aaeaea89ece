"""KV state kept across requests, found again by the longest common prefix of its keys.

A key stands for one prompt position: the token id, or for an image token a salt made from the
picture's pixels, so that two pictures never share state. Knows nothing of models and prompts; the
caches of one entry belong to one model only, and what is in memory goes with that model.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlx_server.engine.disk_tier import DiskHit, DiskTier
from mlx_server.engine.kv_caches import (
    KVCaches,
    compact,
    compact_bytes,
    fork,
    is_trimmable,
    materialise,
    num_bytes,
    trim,
)
from mlx_server.engine.status import PrefixCacheStats

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """`caches` hold exactly the first `num_tokens` positions and are the caller's to change."""

    num_tokens: int
    caches: KVCaches


@dataclass(slots=True, eq=False)
class _Entry:
    """`is_on_disk` is true as well where nothing more of it will ever be there."""

    keys: Keys
    variant: str
    caches: KVCaches
    num_bytes: int
    is_on_disk: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """An entry that holds the first `num_tokens` positions of what was asked for."""

    entry_id: int
    num_tokens: int


class PrefixCache:
    """Least recently used entries leave before the bytes pass `max_bytes`; 0 keeps nothing in
    memory. `disk` keeps more, and for longer.

    Sliding-window and recurrent caches cannot go back to an earlier position, so such an entry
    serves only prompts that begin with all of it. State of one `variant` never serves another.
    """

    def __init__(self, max_bytes: int, disk: DiskTier | None = None) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._disk = disk
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._next_id = 0
        self._num_lookups = 0
        self._num_hits = 0
        self._num_tokens_asked = 0
        self._num_tokens_cached = 0

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, keys: Keys, variant: str = "") -> PrefixMatch | None:
        """The longest kept prefix of `keys`; never all of it, since the last token must run to give
        logits. May read from disk, and keeps in memory what it finds there.
        """
        place = self._find(keys, variant)
        match = self._match_on_disk(keys, variant, place) or self._match_in_memory(place)
        self._num_lookups += 1
        self._num_hits += match is not None
        self._num_tokens_asked += len(keys)
        self._num_tokens_cached += match.num_tokens if match else 0
        return match

    def peek(self, keys: Keys, variant: str = "") -> int:
        """How many tokens `match` would find; copies and reads nothing, and is no use of it."""
        hit = self._find_on_disk(keys, variant)
        place = self._find(keys, variant)
        return max(hit.num_tokens if hit else 0, place.num_tokens if place else 0)

    def insert(self, keys: Keys, caches: KVCaches, variant: str = "") -> None:
        """Keep `caches`, which hold exactly the positions of `keys`, and now belong to the prefix
        cache.
        """
        if len(keys) == 0 or (self.max_bytes == 0 and self._disk is None):
            return
        size = compact_bytes(caches)
        if self._is_served(keys, variant) or (size > self.max_bytes and self._disk is None):
            return
        entry = _Entry(keys, variant, caches, size)
        self._make_room(entry)
        compact(caches)
        materialise(caches)
        self._offer_to_disk(entry)
        self._keep(entry)

    def shrink_to(self, num_bytes: int) -> None:
        """Let go of entries until the rest takes no more than `num_bytes` of memory."""
        while self.num_bytes > num_bytes:
            entry_id, oldest = next(iter(self._entries.items()))
            self._offer_to_disk(oldest)
            self._drop(entry_id)

    def use(self, keys: Keys, variant: str = "") -> None:
        """Let the entry that `match` would find be the last to leave."""
        place = self._find(keys, variant)
        if place is not None:
            self._entries.move_to_end(place.entry_id)

    def forget(self, keys: Keys, variant: str = "") -> None:
        """Let go of all state that could serve `keys`, in memory and on disk."""
        while (place := self._find(keys, variant)) is not None:
            self._drop(place.entry_id)
        if self._disk is not None:
            self._disk.forget(keys, variant)

    def leave_to_disk(self) -> None:
        """Offer what is in memory alone, as long as there is room for it: it is about to go."""
        for entry in reversed(self._entries.values()):
            self._offer_to_disk(entry)

    def clear(self) -> None:
        """Forget what is in memory."""
        self._entries.clear()
        self.num_bytes = 0

    def stats(self) -> PrefixCacheStats:
        disk = self._disk
        return PrefixCacheStats(
            num_entries=len(self._entries),
            num_bytes=self.num_bytes,
            max_bytes=self.max_bytes,
            num_disk_entries=disk.num_entries if disk else 0,
            num_disk_bytes=disk.num_bytes if disk else 0,
            max_disk_bytes=disk.max_bytes if disk else 0,
            num_lookups=self._num_lookups,
            num_hits=self._num_hits,
            num_tokens_asked=self._num_tokens_asked,
            num_tokens_cached=self._num_tokens_cached,
        )

    def _find(self, keys: Keys, variant: str) -> _Place | None:
        best = None
        for entry_id, entry in self._entries.items():
            if entry.variant != variant:
                continue
            length = min(common_length(entry.keys, keys), len(keys) - 1)
            if length < len(entry.keys) and not is_trimmable(entry.caches):
                continue
            if length > (best.num_tokens if best else 0):
                best = _Place(entry_id, length)
        return best

    def _find_on_disk(self, keys: Keys, variant: str) -> DiskHit | None:
        return self._disk.find(keys, len(keys) - 1, variant) if self._disk else None

    def _match_in_memory(self, place: _Place | None) -> PrefixMatch | None:
        if place is None:
            return None
        self._entries.move_to_end(place.entry_id)
        entry = self._entries[place.entry_id]
        self._offer_to_disk(entry)
        caches = fork(entry.caches)
        trim(caches, len(entry.keys) - place.num_tokens)
        return PrefixMatch(place.num_tokens, caches)

    def _match_on_disk(self, keys: Keys, variant: str, place: _Place | None) -> PrefixMatch | None:
        """What is longer on disk than what memory holds at `place`."""
        if self._disk is None:
            return None
        min_tokens = place.num_tokens + 1 if place else 1
        match = self._disk.match(keys, len(keys) - 1, variant, min_tokens=min_tokens)
        if match is None:
            return None
        caches = fork(match.caches)
        kept = keys[: match.num_tokens]
        entry = _Entry(kept, variant, match.caches, num_bytes(match.caches), is_on_disk=True)
        self._make_room(entry)
        self._keep(entry)
        return PrefixMatch(match.num_tokens, caches)

    def _make_room(self, entry: _Entry) -> None:
        """Before the entry is copied, or both it and what leaves for it would be in memory."""
        if entry.num_bytes > self.max_bytes:
            return
        for entry_id, old in list(self._entries.items()):
            if _covers(entry, old):
                self._drop(entry_id)
        self.shrink_to(self.max_bytes - entry.num_bytes)

    def _keep(self, entry: _Entry) -> None:
        if entry.num_bytes > self.max_bytes:
            return
        self._entries[self._next_id] = entry
        self._next_id += 1
        self.num_bytes += entry.num_bytes

    def _is_served(self, keys: Keys, variant: str) -> bool:
        """Whether a longer entry that can be trimmed back holds these positions as well."""
        for entry_id, entry in self._entries.items():
            holds_them = common_length(entry.keys, keys) == len(keys) < len(entry.keys)
            if holds_them and entry.variant == variant and is_trimmable(entry.caches):
                self._entries.move_to_end(entry_id)
                self._offer_to_disk(entry)
                return True
        return False

    def _offer_to_disk(self, entry: _Entry) -> None:
        """Whenever it is used and when it goes, as long as the disk's queue was full before."""
        if self._disk is not None and not entry.is_on_disk:
            entry.is_on_disk = self._disk.insert(entry.keys, entry.caches, entry.variant)

    def _drop(self, entry_id: int) -> None:
        self.num_bytes -= self._entries.pop(entry_id).num_bytes


def _covers(new: _Entry, old: _Entry) -> bool:
    """Whether `new` serves all that `old` does: an equal one, or a shorter one if `new` can be
    trimmed back.
    """
    if old.variant != new.variant or common_length(old.keys, new.keys) < len(old.keys):
        return False
    return len(old.keys) == len(new.keys) or is_trimmable(new.caches)


def common_length(left: Keys, right: Keys) -> int:
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(np.argmax(differs)) if differs.any() else length
