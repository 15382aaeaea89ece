"""The disk behind the prefix cache of one model: which stored state serves a prompt.

State whose positions can be told apart is stored in blocks, each named by all keys up to its end,
so that prompts share what they have in common. Other state is stored whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import mlx_vlm
import numpy as np
import numpy.typing as npt

from mlx_server.engine.disk_store import DiskStore
from mlx_server.engine.host_state import (
    HostState,
    can_be_stored,
    is_sliceable,
    to_caches,
    to_host,
)
from mlx_server.engine.kv_caches import KVCaches, materialise
from mlx_server.engine.kv_file import Record
from mlx_server.engine.kv_folder import last_uses

FORMAT = 1
BLOCK_SIZE = 32
DIGEST_BYTES = 16

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DiskHit:
    """`names` are files that together hold the first `num_tokens` positions."""

    num_tokens: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DiskMatch:
    num_tokens: int
    caches: KVCaches


def namespace(fingerprint: str, *settings: str) -> str:
    """The folder for state of one checkpoint under settings that change what its state is."""
    parts = (fingerprint, mlx_vlm.__version__, *settings)
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=DIGEST_BYTES)
    return f"v{FORMAT}-{digest.hexdigest()}"


class DiskTier:
    """Runs on the MLX thread. `namespace` is one that the function of that name gives."""

    def __init__(self, store: DiskStore, namespace: str) -> None:
        self._store = store
        self._namespace = namespace

    @property
    def num_entries(self) -> int:
        return len(self._store.folder)

    @property
    def num_bytes(self) -> int:
        return self._store.folder.num_bytes

    @property
    def max_bytes(self) -> int:
        return self._store.folder.max_bytes

    def find(self, keys: Keys, max_tokens: int, variant: str) -> DiskHit | None:
        """The longest stored prefix of at most `max_tokens` positions; reads no file."""
        keys = keys[: max(max_tokens, 0)]
        names = []
        for name in self._block_names(keys, variant):
            if not self._store.has(name):
                break
            names.append(name)
        num_tokens = len(names) * BLOCK_SIZE
        lengths = [n for n in self._state_lengths() if num_tokens < n <= len(keys)]
        for name in reversed(list(self._names("state", keys, lengths, variant))):
            if self._store.has(name):
                return DiskHit(_length(name), (name,))
        return DiskHit(num_tokens, tuple(names)) if names else None

    def match(
        self, keys: Keys, max_tokens: int, variant: str, *, min_tokens: int = 1
    ) -> DiskMatch | None:
        """State of the longest stored prefix of `min_tokens` to `max_tokens` positions.

        It may be shorter than what `find` says, if files prove to be damaged.
        """
        hit = self.find(keys, max_tokens, variant)
        while hit is not None and hit.num_tokens >= min_tokens:
            match = self._read(keys, hit)
            if match is not None and match.num_tokens >= min_tokens:
                return match
            hit = self.find(keys, hit.num_tokens - 1, variant)
        return None

    def insert(self, keys: Keys, caches: KVCaches, variant: str) -> bool:
        """Store what is not stored yet of `caches`, which have been evaluated and hold exactly the
        positions of `keys`. Returns before it is written; False if the queue has no room for some
        of it, which may be offered again.
        """
        if not can_be_stored(caches):
            return True
        is_in_blocks = is_sliceable(caches)
        names = list(
            self._block_names(keys, variant)
            if is_in_blocks
            else self._names("state", keys, [len(keys)], variant)
        )
        uses = last_uses(names)
        new = [name for name in names if not self._store.has(name)]
        self._touch(uses)
        if not new:
            return True
        host = to_host(caches)
        size = BLOCK_SIZE if is_in_blocks else len(keys)
        # views of a long conversation would hold all of it until its last turn is written
        is_copy = len(new) < len(names) / 2
        for name in new:
            if not self._store.put(_record(name, keys, host, size, is_copy), uses[name]):
                # what follows would be of no use without it
                return False
        return True

    def forget(self, keys: Keys, variant: str) -> None:
        """Let go of all state that could serve `keys`."""
        lengths = [n for n in self._state_lengths() if n <= len(keys)]
        self._store.remove(self._block_names(keys, variant))
        self._store.remove(self._names("state", keys, lengths, variant))

    def _read(self, keys: Keys, hit: DiskHit) -> DiskMatch | None:
        records = list(self._intact(keys, hit))
        if not records:
            return None
        try:
            caches = to_caches(*(record.state for record in records))
            materialise(caches)
        except ValueError:
            self._store.remove(hit.names)
            return None
        self._touch(last_uses(hit.names[: len(records)]))
        return DiskMatch(sum(len(record.keys) for record in records), caches)

    def _touch(self, uses: Mapping[str, int]) -> None:
        for name, last_use_ns in uses.items():
            self._store.folder.touch(name, last_use_ns)

    def _intact(self, keys: Keys, hit: DiskHit) -> Iterator[Record]:
        for name in hit.names:
            record = self._store.read(name)
            if record is None:
                return
            end = _length(name)
            if not np.array_equal(record.keys, keys[end - len(record.keys) : end]):
                self._store.remove([name])
                return
            yield record

    def _state_lengths(self) -> list[int]:
        return sorted(set(map(_length, self._store.state_names(self._namespace))))

    def _block_names(self, keys: Keys, variant: str) -> Iterator[str]:
        return self._names("block", keys, range(BLOCK_SIZE, len(keys) + 1, BLOCK_SIZE), variant)

    def _names(self, kind: str, keys: Keys, lengths: Iterable[int], variant: str) -> Iterator[str]:
        """The names for prefixes of `lengths`, which ascend; each commits to all of its keys, whole
        as they are, and to the model.
        """
        digest = hashlib.blake2b(
            f"{self._namespace}\0{kind}\0{variant}\0".encode(), digest_size=DIGEST_BYTES
        )
        done = 0
        for length in lengths:
            digest.update(keys[done:length].astype("<i8").tobytes())
            done = length
            yield f"{self._namespace}/{kind}-{length}-{digest.copy().hexdigest()}.safetensors"


def _length(name: str) -> int:
    return int(name.rsplit("/", 1)[-1].split("-")[1])


def _record(name: str, keys: Keys, host: HostState, size: int, is_copy: bool) -> Record:
    end = _length(name)
    start = end - size
    # a state that cannot be sliced has arrays of any shape
    is_whole = start == 0 and size == len(keys)
    part = host if is_whole else host.positions(start, end, is_copy=is_copy)
    return Record(name, keys[start:end], part)
