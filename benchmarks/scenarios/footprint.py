"""Row 12: how long a start takes and how much memory is in use before and after work."""

from __future__ import annotations

from benchmarks.bench import Bench, Scenario, limited
from benchmarks.report import Figure, Samples
from benchmarks.scenarios.streams import ask_all
from benchmarks.servers import Kind

MB = 1e6
HEALTH, ANSWER = "start to the first 200 of /health", "start to the first answer"
IDLE, AFTER = "resident memory, idle", "resident memory after 8 prompts of 500 tokens"


def measure(bench: Bench, kind: Kind, samples: Samples) -> None:
    writer = bench.writer
    for run in range(bench.runs):
        with bench.serve(kind) as server:
            samples.add(HEALTH, server.seconds["health"])
            samples.add(ANSWER, server.seconds["answer"])
            samples.add(IDLE, server.rss_bytes / MB)
            texts = (writer.text(bench.size(500, 50), f"load {run} {i}") for i in range(8))
            bodies = [server.chat(text, bench.size(32, 4)) for text in texts]
            limited(bench, ask_all(bench, server, bodies))
            samples.add(AFTER, server.rss_bytes / MB)


SCENARIOS = (
    Scenario(
        "12",
        "start and memory",
        (
            Figure(HEALTH, "s", "less"),
            Figure(ANSWER, "s", "less"),
            Figure(IDLE, "MB", "less"),
            Figure(AFTER, "MB", "less"),
        ),
        measure,
    ),
)
