"""What every scenario is given: the servers to start, the models, and how much to do."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import checkpoints
from benchmarks.client import NothingToMeasure, RequestFailed
from benchmarks.machine import Blas, environment
from benchmarks.report import Figure, Samples
from benchmarks.servers import OURS, ROOT, Kind, Server, StartFailed, serve
from benchmarks.texts import Writer

FAILURES = (
    OSError,
    EOFError,
    TimeoutError,
    subprocess.SubprocessError,
    NothingToMeasure,
    RequestFailed,
    StartFailed,
)
"""What a server may do wrong; a mistake of the benchmarks' own ends them."""


@dataclass(frozen=True, slots=True)
class Bench:
    """`limit_s` is the time that one server may take for one run of a scenario."""

    model_name: str
    blas: Blas
    work_dir: Path
    runs: int
    is_quick: bool
    limit_s: float
    notes: list[str] = field(default_factory=list)
    """What must be known to read the table."""

    @property
    def model(self) -> Path:
        return self.checkpoint(self.model_name)

    @property
    def writer(self) -> Writer:
        return Writer(self.model)

    def checkpoint(self, name: str) -> Path:
        return checkpoints.ensure(self.work_dir, [name])[name]

    def size(self, usual: int, quick: int) -> int:
        return quick if self.is_quick else usual

    def folder(self, name: str) -> Path:
        """An empty one, for what a server keeps on disk."""
        folder = self.work_dir / "state" / name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder

    @contextmanager
    def serve(
        self,
        kind: Kind,
        models: Sequence[Path] = (),
        *,
        options: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> Iterator[Server]:
        logs = self.work_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        given = models or [self.model]
        log = logs / f"{kind}.log"
        with serve(
            kind, given, blas=self.blas, log=log, options=options, variables=variables
        ) as server:
            if server.num_threads not in (None, self.blas.num_threads):
                note = f"{kind} took {server.num_threads} BLAS threads, not {self.blas.num_threads}"
                self.notes.append(note)
            yield server


@dataclass(frozen=True, slots=True)
class Scenario:
    """One or more rows of the table. `measure` fills the samples of one server, starting it itself;
    `bare` gives the values of a loop without a server, by figure.
    """

    number: str
    title: str
    figures: tuple[Figure, ...]
    measure: Callable[[Bench, Kind, Samples], None]
    bare: Callable[[Bench], Mapping[str, float]] | None = None
    kinds: tuple[Kind, ...] = (OURS, "mlx_lm", "mlx_vlm")


def collect(scenario: Scenario, bench: Bench, kind: Kind) -> Samples:
    """What one server gives; what it gave before a failure is kept."""
    samples = Samples()
    try:
        scenario.measure(bench, kind, samples)
    except FAILURES as error:
        samples.failure = f"{type(error).__name__}: {str(error)[:300]}"
    return samples


def run_bare(bench: Bench, *arguments: Any) -> float:
    """The one number that benchmarks/bare.py prints, run with the BLAS that servers get."""
    command = [sys.executable, "-m", "benchmarks.bare", str(bench.model), *map(str, arguments)]
    answer = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(bench.blas, is_preloaded=True),
        timeout=bench.limit_s,
        capture_output=True,
        text=True,
    )
    if answer.returncode != 0:
        raise StartFailed(f"bare loop: {answer.stderr[-500:]}")
    return float(answer.stdout.split()[-1])


def limited(bench: Bench, work: Any) -> Any:
    """Run a coroutine to its end, within the scenario's limit."""

    async def run() -> Any:
        async with asyncio.timeout(bench.limit_s):
            return await work

    return asyncio.run(run())
