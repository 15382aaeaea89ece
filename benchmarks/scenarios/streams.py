"""Rows 1 to 3: one stream and eight, greedy and mixed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.bench import Bench, Scenario, limited, run_bare
from benchmarks.client import Answer, NothingToMeasure, ask
from benchmarks.report import Figure, Samples
from benchmarks.servers import Kind, Server

NUM_STREAMS = 8
PROMPT_TOKENS = 50
RATE = "tokens/s"
MIXED_RATE = "tokens/s, mixed sampling"
EQUAL_RATE = "tokens/s, equal greedy"
KEPT = "mixed of greedy"

MIXED: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 1},
    {"temperature": 1.0, "top_p": 0.9, "seed": 2},
    {"temperature": 0.8, "top_k": 40, "seed": 3},
    {"temperature": 1.2, "top_p": 0.95, "top_k": 100, "seed": 4},
    {"temperature": 0.3, "top_p": 0.5, "seed": 5},
    {"temperature": 0.0, "seed": 6},
    {"temperature": 1.0, "top_k": 5, "seed": 7},
)


def measure_one(bench: Bench, kind: Kind, samples: Samples) -> None:
    num_tokens = bench.size(64, 8)
    with bench.serve(kind) as server:
        for run in range(bench.runs):
            text = bench.writer.text(PROMPT_TOKENS, f"one {run}")
            answer = limited(bench, ask(server.port, server.chat(text, num_tokens)))
            samples.add(RATE, answer.tokens_per_s)


def measure_eight(bench: Bench, kind: Kind, samples: Samples) -> None:
    with bench.serve(kind) as server:
        for run in range(bench.runs):
            samples.add(RATE, rate_of_eight(bench, server, f"eight {run}", [{}] * NUM_STREAMS))


def measure_mixed(bench: Bench, kind: Kind, samples: Samples) -> None:
    with bench.serve(kind) as server:
        for run in range(bench.runs):
            equal = rate_of_eight(bench, server, f"equal {run}", [{}] * NUM_STREAMS)
            mixed = rate_of_eight(bench, server, f"mixed {run}", MIXED)
            samples.add(EQUAL_RATE, equal)
            samples.add(MIXED_RATE, mixed)
            samples.add(KEPT, mixed / equal)


def rate_of_eight(
    bench: Bench, server: Server, name: str, fields: Sequence[Mapping[str, Any]]
) -> float:
    writer, num_tokens = bench.writer, bench.size(128, 8)
    bodies = [
        server.chat(writer.text(PROMPT_TOKENS, f"{name} {i}"), num_tokens, **extra)
        for i, extra in enumerate(fields)
    ]
    return total_rate(limited(bench, ask_all(bench, server, bodies)))


async def ask_all(
    bench: Bench, server: Server, bodies: Sequence[Mapping[str, Any]]
) -> list[Answer]:
    """All at once."""
    asked = (ask(server.port, body, timeout_s=bench.limit_s) for body in bodies)
    return list(await asyncio.gather(*asked))


def total_rate(answers: Sequence[Answer]) -> float:
    """Tokens that were really generated, by the time from the first request to the last answer."""
    began, ended = min(a.sent_at for a in answers), max(a.ended_at for a in answers)
    num_tokens = sum(a.num_tokens for a in answers)
    if num_tokens == 0:
        raise NothingToMeasure("answers without tokens")
    return num_tokens / (ended - began)


SCENARIOS = (
    Scenario(
        "1",
        "1 stream, decoding",
        (Figure(RATE, "1/s", "more"),),
        measure_one,
        lambda bench: {
            RATE: run_bare(bench, "decode", 1, PROMPT_TOKENS, bench.size(64, 8), bench.runs)
        },
    ),
    Scenario(
        "2",
        "8 streams, distinct short prompts",
        (Figure(RATE, "1/s", "more"),),
        measure_eight,
        # 30 more: what the chat template puts around a text
        lambda bench: {
            RATE: run_bare(
                bench,
                "decode",
                NUM_STREAMS,
                PROMPT_TOKENS + 30,
                bench.size(128, 8),
                bench.runs,
            )
        },
    ),
    Scenario(
        "3",
        "8 streams of mixed sampling",
        (
            Figure(MIXED_RATE, "1/s", "more"),
            Figure(EQUAL_RATE, "1/s", "more"),
            Figure(KEPT, "", "more"),
        ),
        measure_mixed,
    ),
)
