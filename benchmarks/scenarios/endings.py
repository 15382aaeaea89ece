"""Rows 9 and 10: clients that leave, and a server that is told to stop while it is busy."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import time

from benchmarks.bench import Bench, Scenario, limited
from benchmarks.client import ask, get_json
from benchmarks.report import Figure, Samples
from benchmarks.servers import OURS, Kind, Server

NUM_TOKENS = 2000
REST_LIMIT_S = 8.0
WINDOW_S = 0.1
QUIET = 0.2
"""Processor time by time, below which a process rests; one that generates uses a core or more."""
STREAMING, WHOLE = "processor at rest, streaming", "processor at rest, not streaming"
ROW_GONE = "row gone, by /health, not streaming"
EXIT_LIMIT_S = 10.0
EXIT, STATUS = "from SIGTERM to the exit", "exit status"


def measure_leaving(bench: Bench, kind: Kind, samples: Samples) -> None:
    with bench.serve(kind) as server:
        for run in range(bench.runs):
            limited(bench, leave(bench, server, f"stream {run}", is_streaming=True))
            samples.add(STREAMING, limited(bench, time_to_rest(server)))
            limited(bench, until_at_rest(server))
            limited(bench, leave(bench, server, f"whole {run}", is_streaming=False))
            if kind == OURS:
                samples.add(ROW_GONE, limited(bench, time_to_no_rows(server)))
                continue
            samples.add(WHOLE, limited(bench, time_to_rest(server)))
            if samples.values[WHOLE][-1] == math.inf:
                return
    if kind == OURS:
        measure_whole_at_rest(bench, samples)


def measure_whole_at_rest(bench: Bench, samples: Samples) -> None:
    """Apart from the question to /health, whose answering takes processor time too."""
    with bench.serve(OURS) as server:
        for run in range(bench.runs):
            limited(bench, leave(bench, server, f"rest {run}", is_streaming=False))
            samples.add(WHOLE, limited(bench, time_to_rest(server)))


async def leave(bench: Bench, server: Server, name: str, *, is_streaming: bool) -> None:
    """Ask for a long answer and close the connection in the middle of it."""
    body = server.chat(bench.writer.text(20, name), NUM_TOKENS, stream=is_streaming)
    has_text = asyncio.Event()
    asking = asyncio.create_task(
        ask(server.port, body, timeout_s=bench.limit_s, on_text=has_text.set)
    )
    if is_streaming:
        await has_text.wait()
    else:
        await asyncio.sleep(1.5)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def time_to_rest(server: Server) -> float:
    """Seconds to the end of the first quiet moment; infinite if there is none in time."""
    began = time.perf_counter()
    used = server.cpu_s
    while time.perf_counter() - began < REST_LIMIT_S:
        await asyncio.sleep(WINDOW_S)
        before, used = used, server.cpu_s
        if used - before < QUIET * WINDOW_S:
            return time.perf_counter() - began
    return math.inf


async def until_at_rest(server: Server) -> None:
    if await time_to_rest(server) == math.inf:
        raise TimeoutError("the server goes on although its client has left")


async def time_to_no_rows(server: Server) -> float:
    began = time.perf_counter()
    while time.perf_counter() - began < REST_LIMIT_S:
        if (await get_json(server.port, "/health"))["num_running"] == 0:
            return time.perf_counter() - began
        await asyncio.sleep(0.02)
    return math.inf


def measure_stop(bench: Bench, kind: Kind, samples: Samples) -> None:
    for run in range(bench.runs):
        with bench.serve(kind) as server:
            limited(bench, stop_while_busy(bench, server, run, samples))


async def stop_while_busy(bench: Bench, server: Server, run: int, samples: Samples) -> None:
    has_text = asyncio.Event()
    asking = [
        asyncio.create_task(
            ask(
                server.port,
                server.chat(bench.writer.text(20, f"busy {run} {i}"), NUM_TOKENS),
                timeout_s=bench.limit_s,
                on_text=has_text.set,
            )
        )
        for i in range(4)
    ]
    await has_text.wait()
    began = time.perf_counter()
    server.process.send_signal(signal.SIGTERM)
    try:
        status = await asyncio.to_thread(server.process.wait, EXIT_LIMIT_S)
        samples.add(EXIT, time.perf_counter() - began)
        samples.add(STATUS, status)
    except subprocess.TimeoutExpired:
        samples.add(EXIT, math.inf)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


SCENARIOS = (
    Scenario(
        "9",
        "a client leaves",
        (
            Figure(STREAMING, "s", "less", REST_LIMIT_S),
            Figure(WHOLE, "s", "less", REST_LIMIT_S),
            Figure(ROW_GONE, "s", "less", REST_LIMIT_S),
        ),
        measure_leaving,
    ),
    Scenario(
        "10",
        "SIGTERM while busy (ours lets answers go on for 5 s)",
        (Figure(EXIT, "s", "less", EXIT_LIMIT_S), Figure(STATUS, "")),
        measure_stop,
    ),
)
