"""The folder of stored KV state: which files it holds, and which of them leave for others.

One folder for each namespace. Other servers may write and remove files at any time, so what is
known here serves to count bytes; whether a file exists is asked of the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = re.compile(r"v\d+-[0-9a-f]{32}")
FILE = re.compile(r"(?P<kind>block|state)-(?P<length>\d{1,9})-[0-9a-f]{32}\.safetensors")
STATE = re.compile("/state-")
TEMPORARY = re.compile(r"\.\d+-[0-9a-f]+-\d+\.part")
ABANDONED_S = 3600.0
STEP_NS = 1000
# room is made for a while at a time, since it takes a look at all files
SPARE_SHARE = 0.05
# of the budget: how much is written until the files of other servers are counted again
RESCAN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class _File:
    num_bytes: int
    last_use_ns: int


def last_uses(names: Sequence[str]) -> dict[str, int]:
    """Times of use for files of which each is of no use without those before it: the first is the
    last to leave.
    """
    now = time.time_ns()
    return {name: now - i * STEP_NS for i, name in enumerate(names)}


def select_states(names: Iterable[str], namespace: str) -> list[str]:
    return [name for name in names if name.startswith(f"{namespace}/state-")]


class KVFolder:
    """Names are `<namespace>/<file>`. Any thread may call; raises OSError only from `write`."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._files: dict[str, _File] = {}
        # by these a search begins, and there may be very many blocks
        self._states: set[str] = set()
        self._lock = threading.Lock()
        self._num_written = 0
        self._num_parts = 0
        self._token = secrets.token_hex(4)
        self.scan()
        self.make_room(0, time.time_ns())

    def __len__(self) -> int:
        return len(self._files)

    def scan(self) -> None:
        """Count anew what is there, by names and sizes alone."""
        found = dict(_scan(self.root))
        with self._lock:
            self._files = found
            self._states = set(filter(STATE.search, found))
            self.num_bytes = sum(file.num_bytes for file in found.values())

    def names(self) -> list[str]:
        with self._lock:
            return list(self._files)

    def state_names(self, namespace: str) -> list[str]:
        with self._lock:
            return select_states(self._states, namespace)

    def has(self, name: str) -> bool:
        try:
            status = (self.root / name).stat()
        except OSError:
            self._forget(name)
            return False
        self._note(name, status.st_size, status.st_mtime_ns)
        return True

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except OSError:
            return None

    def touch(self, name: str, last_use_ns: int) -> None:
        with self._lock:
            file = self._files.get(name)
        if file is not None:
            self._note(name, file.num_bytes, last_use_ns)
            with contextlib.suppress(OSError):
                os.utime(self.root / name, ns=(last_use_ns, last_use_ns))

    def write(self, name: str, pieces: Iterator[bytes], last_use_ns: int) -> None:
        """The file appears whole or not at all. Raises OSError."""
        path = self.root / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._num_parts += 1
        # processes in two containers can have the same number
        part = path.parent / f".{os.getpid()}-{self._token}-{self._num_parts}.part"
        try:
            # what users have written can be read from the keys
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.writelines(pieces)
                num_bytes = file.tell()
            os.utime(part, ns=(last_use_ns, last_use_ns))
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        self._note(name, num_bytes, last_use_ns)
        self._num_written += num_bytes

    def remove(self, name: str) -> None:
        self._forget(name)
        with contextlib.suppress(OSError):
            (self.root / name).unlink(missing_ok=True)

    def make_room(self, num_bytes: int, last_use_ns: int) -> bool:
        """Remove what was used longest ago, but nothing later than `last_use_ns`; False if that
        does not leave room for `num_bytes`.
        """
        if self._num_written > RESCAN_SHARE * self.max_bytes:
            self._num_written = 0
            self.scan()
        if self.num_bytes + num_bytes <= self.max_bytes:
            return True
        with self._lock:
            oldest = sorted(self._files.items(), key=lambda item: item[1].last_use_ns)
        target = self.max_bytes - max(num_bytes, int(SPARE_SHARE * self.max_bytes))
        for name, file in oldest:
            if self.num_bytes <= target or file.last_use_ns > last_use_ns:
                break
            self.remove(name)
        return self.num_bytes + num_bytes <= self.max_bytes

    def _note(self, name: str, num_bytes: int, last_use_ns: int) -> None:
        with self._lock:
            known = self._files.get(name)
            self.num_bytes += num_bytes - (known.num_bytes if known else 0)
            self._files[name] = _File(num_bytes, last_use_ns)
            if STATE.search(name):
                self._states.add(name)

    def _forget(self, name: str) -> None:
        with self._lock:
            file = self._files.pop(name, None)
            self._states.discard(name)
            if file is not None:
                self.num_bytes -= file.num_bytes


def _scan(root: Path) -> Iterator[tuple[str, _File]]:
    for namespace in _entries(root):
        if not NAMESPACE.fullmatch(namespace.name):
            continue
        for entry in _entries(namespace):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if FILE.fullmatch(entry.name):
                    file = _File(status.st_size, status.st_mtime_ns)
                    yield f"{namespace.name}/{entry.name}", file
                elif TEMPORARY.fullmatch(entry.name):
                    _remove_abandoned(entry, status.st_mtime)


def _entries(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _remove_abandoned(part: os.DirEntry[str], modified_s: float) -> None:
    """Another server may still be writing a young one."""
    if time.time() - modified_s > ABANDONED_S:
        os.unlink(part)
