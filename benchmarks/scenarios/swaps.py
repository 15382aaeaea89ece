"""Row 7: clients that ask for two models in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks import checkpoints
from benchmarks.bench import Bench, Scenario, limited
from benchmarks.client import Answer, ask
from benchmarks.report import Figure, Samples
from benchmarks.servers import Kind, Server

NUM_CLIENTS = 4
NUM_TOKENS = 16
MIXED, ONE, FACTOR = "wall, two models in turn", "wall, one model", "two models of one"
LONGEST, LOADS = "longest wait, two models", "loads"


def measure_small(bench: Bench, kind: Kind, samples: Samples) -> None:
    measure(bench, kind, samples, [checkpoints.SMOLLM2, checkpoints.SMOLLM2_COPY])


def measure_moe(bench: Bench, kind: Kind, samples: Samples) -> None:
    big = [checkpoints.MOE, checkpoints.MOE_COPY]
    small = [checkpoints.SMALL_MOE, checkpoints.SMALL_MOE_COPY]
    measure(bench, kind, samples, small if bench.is_quick else big)


def measure(bench: Bench, kind: Kind, samples: Samples, names: Sequence[str]) -> None:
    models = [bench.checkpoint(name) for name in names]
    with bench.serve(kind, models) as server:
        for run in range(bench.runs):
            # the model that the run before left in memory may be the other one
            limited(bench, ask(server.port, server.chat("hi", 1)))
            one = limited(bench, storm(bench, server, [models[0]], f"one {run}"))
            before = server.num_loads
            mixed = limited(bench, storm(bench, server, models, f"mixed {run}"))
            after = server.num_loads
            samples.add(ONE, wall(one))
            samples.add(MIXED, wall(mixed))
            samples.add(FACTOR, wall(mixed) / wall(one))
            samples.add(LONGEST, max(answer.wall_s for answer in mixed))
            if before is not None and after is not None:
                samples.add(LOADS, after - before)


async def storm(bench: Bench, server: Server, models: Sequence[Path], name: str) -> list[Answer]:
    """Every client sends its next request as soon as it has the answer to the one before."""
    writer, num_requests = bench.writer, bench.size(6, 2)

    async def client(number: int) -> list[Answer]:
        answers = []
        for i in range(num_requests):
            model = server.name_of(models[(number + i) % len(models)])
            text = writer.text(20, f"{name} {number} {i}")
            body = server.chat(text, NUM_TOKENS, model=model)
            answers.append(await ask(server.port, body, timeout_s=bench.limit_s))
        return answers

    by_client = await asyncio.gather(*map(client, range(NUM_CLIENTS)))
    return [answer for answers in by_client for answer in answers]


def wall(answers: Sequence[Answer]) -> float:
    return max(a.ended_at for a in answers) - min(a.sent_at for a in answers)


FIGURES = (
    Figure(MIXED, "s", "less"),
    Figure(ONE, "s", "less"),
    Figure(FACTOR, "", "less"),
    Figure(LONGEST, "s", "less"),
    Figure(LOADS, ""),
)
SCENARIOS = (
    Scenario("7", "swap storm, 24 requests of 4 clients", FIGURES, measure_small),
    Scenario("7b", "the same, mixtures of experts of 2.5 GB", FIGURES, measure_moe),
)
