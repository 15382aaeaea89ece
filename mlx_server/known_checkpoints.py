"""Facts of checkpoint folders, read again only when a folder has changed."""

from __future__ import annotations

from pathlib import Path

from mlx_server.checkpoint import CheckpointFacts
from mlx_server.checkpoint_files import missing_file
from mlx_server.errors import ModelLoadFailed

Signature = tuple[int, ...]


class KnownCheckpoints:
    def __init__(self) -> None:
        self._known: dict[Path, tuple[Signature, CheckpointFacts]] = {}

    def facts(self, folder: Path) -> CheckpointFacts | None:
        """None if the folder does not hold a complete checkpoint."""
        signature = _signature(folder)
        if signature is None:
            return None
        known = self._known.get(folder)
        if known is not None and known[0] == signature:
            return known[1]
        facts = _read(folder)
        # what is incomplete may be finished within one tick of the file system's clock
        if facts is not None:
            self._known[folder] = (signature, facts)
        return facts


def _signature(folder: Path) -> Signature | None:
    """Changes when a file comes or goes, or the configuration is written again."""
    try:
        config, status = (folder / "config.json").stat(), folder.stat()
    except (OSError, ValueError):
        return None
    return (config.st_mtime_ns, config.st_size, status.st_mtime_ns)


def _read(folder: Path) -> CheckpointFacts | None:
    if missing_file(folder) is not None:
        return None
    try:
        return CheckpointFacts.read(folder)
    except ModelLoadFailed:
        return None
