"""Processor time per token of everything that is not the model: 32 streams of a model of no cost.

    .venv/bin/python benchmarks/overhead.py [--streams 32] [--tokens 256] [--runs 5]

The whole server runs in this process, the clients in another. The figures are medians of the runs;
two further ones are profiled, one for each thread, and the profiles' shares are of these figures.
What MLX computes for the sampler is in the process's time, but in neither thread's. The model still
writes its KV state: what that takes is measured by itself and taken off.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.client import ask
from benchmarks.machine import cpu_s_of_tasks, describe, find_blas
from benchmarks.servers import ROOT

if TYPE_CHECKING:
    import mlx.nn as nn

TIMEOUT_S = 300
MLX_THREAD, LOOP_THREAD = "mlx", "live server"
NUM_SHOWN = 14
NUM_STEPS = 1000
TOKEN = ord("a") + 3  # of the scripted models' tokenizer


@dataclass(frozen=True, slots=True)
class Load:
    num_streams: int
    num_tokens: int

    @property
    def num_all(self) -> int:
        return self.num_streams * self.num_tokens


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of processor time per token, of the process and of its threads by name."""

    process: float
    threads: dict[str, float]
    tokens_per_s: float


def free_model() -> type[nn.Module]:
    """A language model that says the same token at every place; its logits are there before."""
    import mlx.core as mx
    from mlx_vlm.models.base import LanguageModelOutput

    from tests.scripted import VOCAB_SIZE, Script, ScriptedLanguageModel

    class FreeLanguageModel(ScriptedLanguageModel):
        def __init__(self, script: Script) -> None:
            super().__init__(script)
            self._known: dict[int, mx.array] = {}

        def __call__(self, inputs: mx.array, cache: list[Any], **_: Any) -> LanguageModelOutput:
            rows, length = inputs.shape
            self._write(cache, [(0, 0)] * rows, length)
            return LanguageModelOutput(logits=self._logits_of(rows))

        def _logits_of(self, rows: int) -> mx.array:
            if rows not in self._known:
                one = 30.0 * (mx.arange(VOCAB_SIZE) == TOKEN)
                self._known[rows] = mx.contiguous(mx.broadcast_to(one, (rows, 1, VOCAB_SIZE)))
                mx.eval(self._known[rows])
            return self._known[rows]

    return FreeLanguageModel


def model_cost(num_rows: int) -> float:
    """Microseconds of processor time per token of the model of no cost."""
    import mlx.core as mx
    from mlx_vlm.models.cache import BatchKVCache

    from tests.scripted import Script

    model = free_model()(Script())
    caches = [BatchKVCache([0] * num_rows)]
    tokens = mx.zeros((num_rows, 1), dtype=mx.uint32)
    began = time.process_time()
    for _ in range(NUM_STEPS):
        model(tokens, caches)
        mx.eval(caches[0].state)
    return 1e6 * (time.process_time() - began) / (NUM_STEPS * num_rows)


def measure(load: Load, num_runs: int = 1) -> Cost:
    """Serve, and have a process of clients ask; its own start is not counted."""
    from tests.scripted import Script
    from tests.scripted_server import scripted_server

    with (
        tempfile.TemporaryDirectory() as folder,
        patch("tests.scripted.ScriptedLanguageModel", free_model()),
        scripted_server(Path(folder), scripted=Script()) as served,
    ):
        run_clients(served.address[1], Load(load.num_streams, 8))
        runs = [
            counted(load, lambda: run_clients(served.address[1], load)) for _ in range(num_runs)
        ]
    return sorted(runs, key=lambda cost: cost.process)[num_runs // 2]


def counted(load: Load, work: Callable[[], float]) -> Cost:
    tasks = {t.native_id: t.name for t in threading.enumerate() if t.native_id is not None}
    before, process = cpu_s_of_tasks(), time.process_time()
    wall = work()
    after, used = cpu_s_of_tasks(), time.process_time() - process
    each = 1e6 / load.num_all
    threads = {
        name: each * (after[task] - before.get(task, 0.0))
        for task, name in tasks.items()
        if task in after
    }
    return Cost(each * used, threads, load.num_all / wall)


def run_clients(port: int, load: Load) -> float:
    """Seconds from the first request to the last answer."""
    command = [sys.executable, "-m", "benchmarks.overhead", "--client", str(port)]
    sizes = ["--streams", str(load.num_streams), "--tokens", str(load.num_tokens)]
    answer = subprocess.run(
        [*command, *sizes], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S
    )
    answer.check_returncode()
    return float(answer.stdout)


async def be_clients(port: int, load: Load) -> float:
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": load.num_tokens,
        "temperature": 0,
        "stream": True,
    }
    began = time.perf_counter()
    answers = await asyncio.gather(
        *(ask(port, body, timeout_s=TIMEOUT_S) for _ in range(load.num_streams))
    )
    taken = time.perf_counter() - began
    assert sum(answer.num_tokens for answer in answers) == load.num_all
    return taken


@contextmanager
def profiled_worker(profile: cProfile.Profile) -> Iterator[None]:
    from mlx_server.engine.worker import Worker

    original = Worker._run
    Worker._run = lambda self: profile.runcall(original, self)  # type: ignore[method-assign]
    yield
    Worker._run = original  # type: ignore[method-assign]


@contextmanager
def profiled_loop(profile: cProfile.Profile) -> Iterator[None]:
    import uvicorn

    original = uvicorn.Server.serve

    async def serve(self: uvicorn.Server, sockets: Any = None) -> None:
        profile.enable()
        await original(self, sockets)
        profile.disable()

    uvicorn.Server.serve = serve  # type: ignore[method-assign]
    yield
    uvicorn.Server.serve = original  # type: ignore[method-assign]


def shares(profile: cProfile.Profile) -> Counter[str]:
    """Time inside each module; of built-in functions by their names."""
    counter: Counter[str] = Counter()
    stats: Any = pstats.Stats(profile)
    for (file, _, function), (_, _, own, _, _) in stats.stats.items():
        if "gc.collect" not in function:  # once for each model
            counter[module_of(file, function)] += own
    total = sum(counter.values())
    return Counter({name: value / total for name, value in counter.items()})


def module_of(file: str, function: str) -> str:
    if file == "~":
        return function.strip("<>").removeprefix("built-in method ").removeprefix("method ")
    path = Path(file)
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return path.relative_to(ROOT).as_posix()
    _, found, package = path.as_posix().partition("site-packages/")
    return package.split("/")[0] if found else f"{path.parent.name}/{path.name}"


def breakdown(name: str, per_token: float, profile: cProfile.Profile) -> str:
    lines = [f"\n| {name} thread | µs per token | share |", "|---|---|---|"]
    for module, share in shares(profile).most_common(NUM_SHOWN):
        lines.append(f"| {module} | {share * per_token:.1f} | {share:.0%} |")
    return "\n".join(lines)


def report(load: Load, num_runs: int) -> None:
    blas = find_blas(None)
    cost = measure(load, num_runs)
    # of the thread's own processor time, so that waiting costs nothing
    mlx_profile = cProfile.Profile(time.thread_time)
    loop_profile = cProfile.Profile(time.thread_time)
    with profiled_worker(mlx_profile):
        measure(load)
    with profiled_loop(loop_profile):
        measure(load)
    mlx, loop = cost.threads.get(MLX_THREAD, 0.0), cost.threads.get(LOOP_THREAD, 0.0)
    model = model_cost(load.num_streams)
    size = f"{load.num_streams} streams of {load.num_tokens} tokens, {num_runs} runs"
    print(f"{describe(blas)}; {size}\n")
    print("| | µs of processor time per token |\n|---|---|")
    print(f"| MLX thread | {mlx:.0f} |")
    print(f"| event loop | {loop:.0f} |")
    print(f"| the process | {cost.process:.0f} |")
    print(f"| of it the model | {model:.0f} |")
    print(f"| all that is not the model | {cost.process - model:.0f} |")
    print(f"\n{cost.tokens_per_s:.0f} tokens/s by the clock")
    print(breakdown("MLX", mlx, mlx_profile))
    print(breakdown("event loop", loop, loop_profile))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    load = Load(args.streams, args.tokens)
    if args.client is not None:
        print(asyncio.run(be_clients(args.client, load)))
    else:
        report(load, args.runs)


if __name__ == "__main__":
    main()
