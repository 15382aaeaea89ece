"""What a measurement ran on, and the environment in which every server gets the same BLAS."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mlx_server.engine.blas import (
    AVX512_CORE,
    CORE_VARIABLE,
    PROCESSOR_INFO,
    SHORT_SPIN,
    SPIN_VARIABLE,
    has_avx512,
    preload_blas,
)

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
LARGE_PAGES = "glibc.malloc.hugetlb=1"
PACKAGES = ("mlx", "mlx-lm", "mlx-vlm")


@dataclass(frozen=True, slots=True)
class Blas:
    """The library that our server gives MLX; `path` is None where MLX needs none."""

    path: str | None
    num_threads: int
    description: str


def find_blas(num_threads: int | None) -> Blas:
    """What our server would load here, and the number of threads for everybody."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(num_threads or os.cpu_count() or 1))
    described = preload_blas()
    if described is None:
        return Blas(None, num_threads or 1, "the accelerator's own")
    return parse_blas(described, num_threads)


def parse_blas(described: str, num_threads: int | None = None) -> Blas:
    """Of the line that our server logs of its BLAS."""
    found = re.search(r"^(.*) from (\S+), threads: (\d+)$", described)
    if found is None:
        return Blas(None, num_threads or 1, described)
    return Blas(found[2], num_threads or int(found[3]), found[1])


def environment(blas: Blas, *, is_preloaded: bool) -> dict[str, str]:
    """Of a server's process; ours loads the library by itself, others have it put before theirs."""
    variables = {**os.environ, **OFFLINE, "OPENBLAS_NUM_THREADS": str(blas.num_threads)}
    variables.pop("PYTHONPATH", None)
    # as run.sh and our own loading of the library do, for everyone
    variables.setdefault("GLIBC_TUNABLES", LARGE_PAGES)
    variables.setdefault(SPIN_VARIABLE.decode(), SHORT_SPIN.decode())
    if blas.path is not None and is_preloaded:
        variables["LD_PRELOAD"] = blas.path
        if has_avx512(PROCESSOR_INFO):
            variables.setdefault(CORE_VARIABLE.decode(), AVX512_CORE.decode())
    return variables


def describe(blas: Blas) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{processor_name()}, {os.cpu_count()} cores, {platform.system()}; {versions}; "
        f"BLAS: {blas.description}, {blas.num_threads} threads for everyone"
    )


def processor_name() -> str:
    if PROCESSOR_INFO.exists():
        for line in PROCESSOR_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return platform.machine()


def rss_bytes(pid: int) -> int:
    """Resident memory of the process; raises if it has ended."""
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(answer.stdout) * 1024


def cpu_s(pid: int) -> float:
    """Processor time that the process has used; raises if it has ended."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        return ticks_of(stat.read_text()) / os.sysconf("SC_CLK_TCK")
    command = ["ps", "-o", "time=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return seconds_of(answer.stdout.strip())


def cpu_s_of_tasks() -> dict[int, float]:
    """Processor time of the threads of this process by their native ids; empty but on Linux."""
    tick = os.sysconf("SC_CLK_TCK")
    folders = Path("/proc/self/task").glob("*")
    return {int(task.name): ticks_of((task / "stat").read_text()) / tick for task in folders}


def ticks_of(stat: str) -> int:
    """User and system time of a line of /proc/*/stat, whose second field may hold blanks."""
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def seconds_of(clock: str) -> float:
    """Of `ps`'s [hours:]minutes:seconds."""
    seconds = 0.0
    for part in clock.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds
