"""How much memory of this machine a process may still take, on Linux. Knows nothing of MLX."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

KIB = 1024


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """The names of the two versions of control groups for the same three things."""

    limit: str
    usage: str
    reclaimable: str


V1 = _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = _GroupFiles("memory.max", "memory.current", "inactive_file")


def available_bytes(root: Path = Path("/")) -> int | None:
    """What the machine and every control group around this process leave; None if no one says."""
    rooms = [room for room in (_machine_room(root), *_group_rooms(root)) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _machine_room(root: Path) -> int | None:
    kib = _table(root / "proc/meminfo", ":").get("MemAvailable")
    return None if kib is None else kib * KIB


def _group_rooms(root: Path) -> Iterator[int | None]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "", "")
        if number == "0":
            base, files = root / "sys/fs/cgroup", V2
        elif "memory" in controllers.split(","):
            base, files = root / "sys/fs/cgroup/memory", V1
        else:
            continue
        # inside a container the path may be the host's, and only the root of the tree is there
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield _group_room(base / str(group).lstrip("/"), files)


def _group_room(folder: Path, files: _GroupFiles) -> int | None:
    limit, usage = _number(folder / files.limit), _number(folder / files.usage)
    if limit is None or usage is None:
        return None
    # pages of files that nobody reads count as used, and give way
    reclaimable = _table(folder / "memory.stat", " ").get(files.reclaimable, 0)
    return limit - max(0, usage - reclaimable)


def _table(path: Path, separator: str) -> dict[str, int]:
    rows = (line.partition(separator) for line in _text(path).splitlines())
    words = {key: rest.split() for key, _, rest in rows}
    return {key: int(word[0]) for key, word in words.items() if word and word[0].isdigit()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def give_back_freed() -> None:
    """Have the C library return to the system what has been freed; only glibc keeps it at all."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
