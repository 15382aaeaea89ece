"""How the time of a decode step grows with the rows of the batch and the length of their KV state.

    .venv/bin/python benchmarks/growth.py [--rows 1,2,4,8,16,32] [--lengths 512,2048,8000]

The engine's runner in this process. The KV state is made up and found by the prefix cache, since
reading prompts of such lengths would take hours on a CPU. Prints a table of milliseconds and draws
it; what would need more memory than --max-gb is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.checkpoints import SMOLLM2, ensure
from benchmarks.machine import describe, find_blas
from benchmarks.runners import make_runner
from benchmarks.svg import line_chart
from mlx_server.config import EngineConfig, ServerConfig
from mlx_server.engine.sequence import (
    GenerationRequest,
    RawPrompt,
    SamplingParams,
    Sequence,
    Started,
)

Times = dict[tuple[int, int], float]
"""Milliseconds of a step by (rows, length)."""
CACHE_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Plan:
    rows: list[int]
    lengths: list[int]
    num_steps: int
    max_gb: float


def parse() -> tuple[argparse.Namespace, Plan]:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--lengths", type=numbers, default=[512, 1024, 2048, 4096, 8000])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--max-gb", type=float, default=4.0, help="of KV state in the batch")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--svg", type=Path, default=Path("docs/decode_growth.svg"))
    parser.add_argument("--work-dir", type=Path, default=ServerConfig().cache_dir / "benchmarks")
    args = parser.parse_args()
    return args, Plan(args.rows, args.lengths, args.steps, args.max_gb)


def measure(loaded: Any, plan: Plan) -> Times:
    times = {}
    for length in plan.lengths:
        for num_rows in plan.rows:
            if num_rows * length * bytes_per_token(loaded) <= plan.max_gb * 1e9:
                times[num_rows, length] = step_ms(loaded, num_rows, length, plan.num_steps)
                print(f"{num_rows} rows, {length} tokens", file=sys.stderr, flush=True)
    return times


def bytes_per_token(loaded: Any) -> int:
    return int(sum(cache.nbytes for cache in filled_caches(loaded, 256))) // 256


def step_ms(loaded: Any, num_rows: int, length: int, num_steps: int) -> float:
    runner = make_runner(loaded, prefix_cache_bytes=CACHE_BYTES)
    for uid in range(num_rows):
        sequence = sequence_of(loaded, uid, length, num_steps + 4)
        runner.prepare(sequence)
        if uid == 0:
            keys, variant = sequence.prompt.keys[:length], loaded.kv_variant(length + 1)
            runner.prefix_cache.insert(keys, filled_caches(loaded, length), variant)
        while not isinstance(runner.prefill(sequence).event, Started):
            pass
        runner.join(sequence)
    for _ in range(2):
        runner.decode()
    taken = []
    for _ in range(num_steps):
        began = time.perf_counter()
        runner.decode()
        taken.append(time.perf_counter() - began)
    return 1e3 * statistics.median(taken)


def sequence_of(loaded: Any, uid: int, length: int, max_tokens: int) -> Sequence:
    """One that greedily goes on behind `length` tokens of KV state."""
    prompt = RawPrompt(tuple(1000 + i % 1000 for i in range(length + 1)))
    sampling = SamplingParams(temperature=0.0)
    request = GenerationRequest(f"row {uid}", None, prompt, sampling, max_tokens)
    return Sequence(uid, request, 0, loaded.id, seed=0, deadline=float("inf"))


def filled_caches(loaded: Any, length: int) -> Any:
    """KV state of no text in particular."""
    import mlx.core as mx

    caches = loaded.make_caches()
    args = loaded.language_model.args
    heads, width = args.num_key_value_heads, args.head_dim
    for cache in caches:
        keys, values = mx.random.normal((2, 1, heads, length, width))
        cache.update_and_fetch(keys, values)
    mx.eval([cache.state for cache in caches])
    return caches


def table(plan: Plan, times: Times) -> str:
    head = ["rows", *(f"{length} tokens" for length in plan.lengths), "tokens/s at the shortest"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for num_rows in plan.rows:
        cells = [times.get((num_rows, length)) for length in plan.lengths]
        shown = ["–" if ms is None else f"{ms:.0f}" for ms in cells]
        rate = f"{1e3 * num_rows / cells[0]:.0f}" if cells[0] else "–"
        lines.append(f"| {' | '.join([str(num_rows), *shown, rate])} |")
    return "\n".join(lines)


def chart(plan: Plan, times: Times) -> str:
    series = {
        f"{length} tokens": [(n, times[n, length]) for n in plan.rows if (n, length) in times]
        for length in plan.lengths
    }
    drawn = {name: line for name, line in series.items() if line}
    return line_chart("One decode step, by rows and KV length", "rows", "ms", drawn)


def main() -> None:
    args, plan = parse()
    blas = find_blas(args.threads)
    path = ensure(args.work_dir, [SMOLLM2])[SMOLLM2]
    from mlx_server.engine.device import prepare_device
    from mlx_server.engine.loader import load_checkpoint

    prepare_device()
    loaded = load_checkpoint(SMOLLM2, path, EngineConfig())
    times = measure(loaded, plan)
    print(f"{describe(blas)}; {SMOLLM2}; milliseconds, medians of {plan.num_steps} steps\n")
    print(table(plan, times))
    args.svg.write_text(chart(plan, times))


if __name__ == "__main__":
    main()
