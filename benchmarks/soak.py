"""Many clients for a while: random requests over two models, streams, aborts and swaps.

    .venv/bin/python benchmarks/soak.py [--minutes 20] [--clients 8] [--models tiny|smollm2]

Every complete answer at temperature 0 must be the one that a server gave which had nothing else to
do and no prefix cache; it may differ where two tokens were as likely as each other, which takes
weights in single precision, as all of these models have. Exits with 1 if an answer was wrong, an
error or cut short, if something was left in the engine, or if its memory goes on growing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.checkpoints import SMOLLM2, SMOLLM2_COPY, ensure
from benchmarks.client import RequestFailed, ask, get_json, post_json
from benchmarks.machine import describe, find_blas
from benchmarks.servers import OURS, ROOT, Server, serve
from benchmarks.soak_requests import NEAR_TIE, Expected, Request, draw, expected_of
from mlx_server.config import ServerConfig

SAMPLE_S = 5.0
ANSWER_S = 120.0
ABORTED = 0.15
MAX_SHOWN = 20
BAD = ("wrong", "4xx", "5xx", "broken off", "left over")
MAX_MB_PER_MINUTE = 2.0
"""Generous to allocators; answers that leave their KV state behind grow faster."""


@dataclass(slots=True)
class Outcome:
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, bytes) since the beginning."""

    def note(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        if len(self.notes) < MAX_SHOWN:
            self.notes.append(f"{kind}: {text}")

    @property
    def mb_per_minute(self) -> float:
        """Slope of the second half, in which caches have filled; 0 of too few samples."""
        half = self.memory[len(self.memory) // 2 :]
        if len(half) < 2:
            return 0.0
        fit = statistics.linear_regression([s for s, _ in half], [b / 1e6 for _, b in half])
        return 60 * fit.slope

    @property
    def is_good(self) -> bool:
        grows = self.mb_per_minute > MAX_MB_PER_MINUTE
        return not grows and not any(self.counts[name] for name in BAD)


async def precompute(server: Server, requests: Sequence[Request]) -> list[Expected]:
    """Each alone, those of one model after the other."""
    answers = {}
    for number, request in sorted(enumerate(requests), key=lambda pair: str(pair[1].model)):
        body = {
            **request.body,
            "model": server.name_of(request.model),
            "logprobs": True,
            "top_logprobs": 2,
        }
        answer = await post_json(server.port, body, timeout_s=ANSWER_S)
        answers[number] = expected_of(answer["choices"][0])
    return [answers[number] for number in range(len(requests))]


async def client(
    server: Server,
    work: Sequence[tuple[Request, Expected]],
    outcome: Outcome,
    chance: random.Random,
    ends_at: float,
) -> None:
    while time.monotonic() < ends_at:
        request, expected = chance.choice(work)
        body = {
            **request.body,
            "model": server.name_of(request.model),
            "stream": chance.random() < 0.5,
        }
        leaves_after = chance.expovariate(1.0) if chance.random() < ABORTED else None
        await one_request(server, body, expected, outcome, leaves_after)


async def one_request(
    server: Server,
    body: Mapping[str, Any],
    expected: Expected,
    outcome: Outcome,
    leaves_after: float | None,
) -> None:
    asking = asyncio.create_task(ask(server.port, body, timeout_s=ANSWER_S))
    await asyncio.wait([asking], timeout=leaves_after)
    if not asking.done():
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        outcome.counts["left"] += 1
        return
    try:
        answer = asking.result()
    except RequestFailed as error:
        outcome.note("5xx" if error.status >= 500 else "4xx", str(error))
    except (OSError, EOFError, TimeoutError) as error:
        outcome.note("broken off", repr(error))
    else:
        verdict = expected.judge(answer)
        if verdict == "same":
            outcome.counts["same"] += 1
        else:
            ended = answer.error or answer.finish_reason
            alone = f"alone {expected.text[:80]!r}, {expected.finish_reason}"
            outcome.note(verdict, f"{answer.text[:80]!r}, {ended}; {alone}")


async def watch(server: Server, outcome: Outcome, ends_at: float) -> None:
    began = time.monotonic()
    while time.monotonic() < ends_at:
        outcome.memory.append((time.monotonic() - began, server.rss_bytes))
        await asyncio.sleep(SAMPLE_S)


async def soak(
    server: Server,
    work: Sequence[tuple[Request, Expected]],
    args: argparse.Namespace,
) -> Outcome:
    outcome, ends_at = Outcome(), time.monotonic() + 60 * args.minutes
    clients = (
        client(server, work, outcome, random.Random(args.seed + i), ends_at)
        for i in range(args.clients)
    )
    await asyncio.gather(watch(server, outcome, ends_at), *clients)
    health = await get_json(server.port, "/health")
    outcome.counts["left over"] = health["num_running"] + health["num_waiting"]
    return outcome


def models_of(args: argparse.Namespace) -> dict[Path, bool]:
    """Folders, and whether each sees images."""
    if args.models == "smollm2":
        return dict.fromkeys(ensure(args.work_dir, [SMOLLM2, SMOLLM2_COPY]).values(), False)
    folder = args.work_dir / "tiny"
    if not (folder / "tiny-vision" / "generation_config.json").is_file():
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        code = (
            "import sys; from pathlib import Path; from mlx_server.engine.blas import preload_blas;"
            "preload_blas(); from tests.tiny.checkpoints import tiny_llama, tiny_qwen3_vl;"
            "folder = Path(sys.argv[1]); tiny_llama(folder / 'tiny-text');"
            "tiny_qwen3_vl(folder / 'tiny-vision')"
        )
        subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)
    return {folder / "tiny-text": False, folder / "tiny-vision": True}


def report(outcome: Outcome, expected: Sequence[Expected], num_loads: int | None) -> None:
    print("| | |\n|---|---|")
    for name in ("same", "tie", "wrong", "left", "4xx", "5xx", "broken off", "left over"):
        print(f"| {name} | {outcome.counts[name]} |")
    num_ties, num_tokens = sum(len(e.ties) for e in expected), sum(e.num_tokens for e in expected)
    print(f"| tokens of the lone answers, tied within {NEAR_TIE:g} | {num_ties} of {num_tokens} |")
    print(f"| loads | {num_loads} |")
    first, last = outcome.memory[0][1], outcome.memory[-1][1]
    print(f"| resident memory, first and last | {first / 1e6:.0f} and {last / 1e6:.0f} MB |")
    slope = f"{outcome.mb_per_minute:.1f} of {MAX_MB_PER_MINUTE:g} MB a minute"
    print(f"| its slope in the second half, of what is allowed | {slope} |")
    for note in outcome.notes:
        print(f"\n- {note}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=40, help="different ones")
    parser.add_argument("--models", choices=["tiny", "smollm2"], default="tiny")
    parser.add_argument("--options", type=json.loads, default=[], help="of the server, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work-dir", type=Path, default=ServerConfig().cache_dir / "benchmarks")
    return parser.parse_args()


def main() -> None:
    args = parse()
    blas, models = find_blas(None), models_of(args)
    requests, folders = draw(models, args.requests, args.seed), list(models)
    log = args.work_dir / "soak.log"
    with serve(OURS, folders, blas=blas, log=log, options=["--prefix-cache-gb", "0"]) as server:
        expected = asyncio.run(precompute(server, requests))
    with serve(OURS, folders, blas=blas, log=log, options=args.options) as server:
        work = list(zip(requests, expected, strict=True))
        outcome = asyncio.run(soak(server, work, args))
        size = f"{args.clients} clients, {args.minutes:g} minutes"
        print(f"{describe(blas)}; {args.models}, {size}\n")
        report(outcome, expected, server.num_loads)
    sys.exit(0 if outcome.is_good else 1)


if __name__ == "__main__":
    main()
