"""Row 8: what a long prompt that arrives does to the answers under way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.bench import Bench, Scenario, limited
from benchmarks.client import ask
from benchmarks.report import Figure, Samples, longest_gap
from benchmarks.servers import Kind, Server

NUM_STREAMS = 4
ENOUGH = 8
GAP, BEFORE, LONG = "longest gap", "longest gap before it", "first text of the long prompt"
NUM_LIVE = "streams under way"


@dataclass(slots=True)
class Watched:
    """A stream and the moments of its pieces of text."""

    times: list[float] = field(default_factory=list)
    task: asyncio.Task[object] | None = None

    @property
    def is_live(self) -> bool:
        return self.task is not None and not self.task.done() and bool(self.times)

    def note(self) -> None:
        self.times.append(time.perf_counter())


def measure(bench: Bench, kind: Kind, samples: Samples) -> None:
    with bench.serve(kind) as server:
        for run in range(bench.runs):
            limited(bench, one_run(bench, server, run, samples))


async def one_run(bench: Bench, server: Server, run: int, samples: Samples) -> None:
    writer, num_tokens = bench.writer, bench.size(400, 60)
    streams = [Watched() for _ in range(NUM_STREAMS)]
    for number, stream in enumerate(streams):
        body = server.chat(writer.text(20, f"short {run} {number}"), num_tokens)
        stream.task = asyncio.create_task(
            ask(server.port, body, timeout_s=bench.limit_s, on_text=stream.note)
        )
    try:
        began = await all_under_way(streams)
        before = [longest_gap(stream.times[-ENOUGH:], 0.0) for stream in streams]
        live = [stream for stream in streams if stream.is_live]
        text = writer.text(bench.size(1500, 150), f"long {run}")
        long = await ask(server.port, server.chat(text, 1), timeout_s=bench.limit_s)
        # the next token of each, which may have waited for the end of the prefill
        await asyncio.sleep(0.5)
        samples.add(NUM_LIVE, len(live))
        samples.add(BEFORE, 1e3 * max(before))
        samples.add(GAP, 1e3 * max((longest_gap(s.times, began) for s in live), default=0.0))
        samples.add(LONG, long.wall_s)
    finally:
        for stream in streams:
            if stream.task is not None:
                stream.task.cancel()
        await asyncio.gather(*(s.task for s in streams if s.task), return_exceptions=True)


async def all_under_way(streams: list[Watched]) -> float:
    """Until each has some text; the moment at which that was so."""
    while min(len(stream.times) for stream in streams) < ENOUGH:
        await asyncio.sleep(0.01)
    return time.perf_counter()


SCENARIOS = (
    Scenario(
        "8",
        "4 streams while a prompt of 1,500 tokens arrives",
        (
            Figure(GAP, "ms", "less"),
            Figure(BEFORE, "ms", "less"),
            Figure(LONG, "s", "less"),
            Figure(NUM_LIVE, ""),
        ),
        measure,
    ),
)
