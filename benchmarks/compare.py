"""This server beside others, over HTTP: the same model, machine, BLAS and number of threads.

    .venv/bin/python benchmarks/compare.py [--only 2,4] [--runs 5] [--quick] [--model windows-85m]

Servers run one after the other. Prints a Markdown table row by row; a ratio above 1 says that ours
is that many times better, whichever way the unit goes. Everything is bounded in time.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import checkpoints
from benchmarks.bench import FAILURES, Bench, Scenario, collect
from benchmarks.machine import describe, find_blas
from benchmarks.report import BARE, Samples, head, row
from benchmarks.scenarios import (
    endings,
    footprint,
    gaps,
    prefixes,
    streams,
    swaps,
)
from benchmarks.servers import KINDS, OURS, Kind
from mlx_server.config import ServerConfig

SCENARIOS: tuple[Scenario, ...] = (
    *streams.SCENARIOS,
    *prefixes.SCENARIOS,
    *swaps.SCENARIOS,
    *gaps.SCENARIOS,
    *endings.SCENARIOS,
    *footprint.SCENARIOS,
)
NUMBERS = tuple(scenario.number for scenario in SCENARIOS)
# The other rows are about swaps and processes, for which the model matters little.
ROWS_OF_WINDOWS = ("1", "2", "3", "4", "4b", "5", "8")


@dataclass(frozen=True, slots=True)
class Options:
    bench: Bench
    numbers: Sequence[str]
    kinds: Sequence[Kind]
    json: Path | None


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", type=some_of(NUMBERS), help=f"rows, of {', '.join(NUMBERS)}")
    parser.add_argument("--runs", type=int, help="medians are of that many (default: 5)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    parser.add_argument(
        "--model",
        default=checkpoints.SMOLLM2,
        choices=[checkpoints.SMOLLM2, checkpoints.WINDOWS],
        help="the second is random, with sliding windows (default: %(default)s)",
    )
    parser.add_argument(
        "--servers",
        type=some_of(KINDS),
        default=",".join(KINDS),
        help="default: %(default)s",
    )
    parser.add_argument("--threads", type=int, help="of the BLAS (default: what ours takes)")
    parser.add_argument("--limit-s", type=float, default=300.0, help="for one step of a row")
    parser.add_argument("--work-dir", type=Path, default=ServerConfig().cache_dir / "benchmarks")
    parser.add_argument("--json", type=Path, help="also write every sample to this file")
    return parser


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        named = text.split(",")
        if unknown := [name for name in named if name not in known]:
            wanted = f"must be some of {', '.join(known)}, not {', '.join(unknown)!r}"
            raise argparse.ArgumentTypeError(wanted)
        return named

    return parse


def parse(argv: Sequence[str] | None) -> Options:
    args = build_parser().parse_args(argv)
    everything = NUMBERS if args.model == checkpoints.SMOLLM2 else ROWS_OF_WINDOWS
    bench = Bench(
        model_name=args.model,
        blas=find_blas(args.threads),
        work_dir=args.work_dir,
        runs=args.runs or (1 if args.quick else 5),
        is_quick=args.quick,
        limit_s=args.limit_s,
    )
    kinds = [kind for kind in KINDS if kind in args.servers]
    return Options(bench, args.only or everything, kinds, args.json)


def main(argv: Sequence[str] | None = None) -> None:
    # an exception, so that the servers are stopped on the way out
    signal.signal(signal.SIGTERM, leave)
    options = parse(argv)
    others = [BARE, *(kind for kind in options.kinds if kind != OURS)]
    print(
        f"{describe(options.bench.blas)}; model {options.bench.model_name}; medians of "
        f"{options.bench.runs}; `{shlex.join(['python', *sys.argv])}`\n"
    )
    print(head(OURS, others), flush=True)
    found: dict[str, dict[str, Samples]] = {}
    for scenario in SCENARIOS:
        if scenario.number in options.numbers:
            found[scenario.number] = run(scenario, options)
            label = f"{scenario.number}. {scenario.title}"
            for figure in scenario.figures:
                print(row(label, figure, OURS, others, found[scenario.number]), flush=True)
                label = ""
    print_failures(found)
    for note in dict.fromkeys(options.bench.notes):
        print(f"- {note}")
    if options.json is not None:
        options.json.write_text(json.dumps(as_values(found), indent=1))


def run(scenario: Scenario, options: Options) -> dict[str, Samples]:
    found = {}
    if scenario.bare is not None:
        found[BARE] = bare(scenario, options.bench)
    for kind in (kind for kind in options.kinds if kind in scenario.kinds):
        print(f"row {scenario.number}: {kind} ...", file=sys.stderr, flush=True)
        found[kind] = collect(scenario, options.bench, kind)
    return found


def bare(scenario: Scenario, bench: Bench) -> Samples:
    assert scenario.bare is not None
    samples = Samples()
    try:
        for name, value in scenario.bare(bench).items():
            samples.add(name, value)
    except FAILURES as error:
        samples.failure = str(error)
    return samples


def print_failures(found: dict[str, dict[str, Samples]]) -> None:
    print()
    for number, by_server in found.items():
        for name, samples in by_server.items():
            if samples.failure is not None:
                print(f"- row {number}, {name}: {samples.failure}")


def as_values(found: dict[str, dict[str, Samples]]) -> dict[str, dict[str, dict[str, list[float]]]]:
    return {
        number: {name: samples.values for name, samples in by_server.items()}
        for number, by_server in found.items()
    }


def leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
