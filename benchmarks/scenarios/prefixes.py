"""Rows 4 to 6: prompts that begin with what was read before, by others or in an earlier turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks import checkpoints
from benchmarks.bench import Bench, Scenario, limited, run_bare
from benchmarks.client import Answer, ask
from benchmarks.report import Figure, Samples
from benchmarks.scenarios.streams import ask_all, total_rate
from benchmarks.servers import OURS, Kind, Server

NUM_STREAMS = 8
RATE = "tokens/s"
CACHED = "prompt tokens cached"
OF_PROMPT = "share of prompt tokens cached"
TURN = "first text of turn 2"
COLD = "first text, cold"
AFTER_SWAP, SWAP_SHARE = "first text after a swap away and back", "share cached after the swap"
AFTER_RESTART, RESTART_SHARE = "first text after a restart", "share cached after the restart"
Messages = list[dict[str, str]]

OLD_TOKENS, NEW_TOKENS = 1200, 30


def prefix_cache_of(bench: Bench, kind: Kind, name: str) -> Mapping[str, str]:
    """mlx_vlm's own is off unless it is asked for, and is then on disk as well: it would find the
    prompts of an earlier benchmark in the folder that it takes by itself.
    """
    if kind != "mlx_vlm":
        return {}
    return {"APC_ENABLED": "1", "APC_DISK_PATH": str(bench.folder(f"{kind}-{name}"))}


def measure_shared_prefix(bench: Bench, kind: Kind, samples: Samples) -> None:
    measure_shared(bench, kind, samples, {})


def measure_shared_if_asked(bench: Bench, kind: Kind, samples: Samples) -> None:
    measure_shared(bench, kind, samples, prefix_cache_of(bench, kind, "shared"))


def measure_shared(
    bench: Bench, kind: Kind, samples: Samples, variables: Mapping[str, str]
) -> None:
    writer, num_tokens = bench.writer, bench.size(64, 8)
    with bench.serve(kind, variables=variables) as server:
        for run in range(bench.runs):
            system = writer.text(bench.size(1000, 100), f"agent {run}")
            tasks = (writer.text(20, f"task {run} {i}") for i in range(NUM_STREAMS))
            bodies = [
                server.chat("", num_tokens, messages=conversation(system, task)) for task in tasks
            ]
            answers = limited(bench, ask_all(bench, server, bodies))
            samples.add(RATE, total_rate(answers))
            samples.add(CACHED, sum(answer.num_cached_tokens for answer in answers))
            prompts = sum(answer.num_prompt_tokens for answer in answers)
            samples.add(OF_PROMPT, sum(a.num_cached_tokens for a in answers) / prompts)


def measure_second_turn(bench: Bench, kind: Kind, samples: Samples) -> None:
    with bench.serve(kind, variables=prefix_cache_of(bench, kind, "turns")) as server:
        for run in range(bench.runs):
            history, first = first_turn(bench, server, f"history {run}")
            second = follow_up(bench, server, history, f"second {run}")
            samples.add(COLD, first.first_text_s)
            samples.add(TURN, second.first_text_s)
            samples.add(CACHED, second.num_cached_tokens)
            samples.add(OF_PROMPT, second.num_cached_tokens / second.num_prompt_tokens)


def measure_kept(bench: Bench, kind: Kind, samples: Samples) -> None:
    other = bench.checkpoint(checkpoints.SMOLLM2_COPY)
    models = [bench.model, other]
    for run in range(bench.runs):
        disk = on_disk(bench, kind, f"{kind}-{run}")
        with bench.serve(kind, models, **disk) as server:
            history, first = first_turn(bench, server, f"kept {run}")
            samples.add(COLD, first.first_text_s)
            limited(bench, ask(server.port, server.chat("hi", 1, model=server.name_of(other))))
            # the swap back is not part of the time to the first text
            limited(bench, ask(server.port, server.chat("hi", 1)))
            after = follow_up(bench, server, history, f"swapped {run}")
            samples.add(AFTER_SWAP, after.first_text_s)
            samples.add(SWAP_SHARE, share(after, history, bench))
        with bench.serve(kind, models, **disk) as server:
            after = follow_up(bench, server, history, f"restarted {run}")
            samples.add(AFTER_RESTART, after.first_text_s)
            samples.add(RESTART_SHARE, share(after, history, bench))


def on_disk(bench: Bench, kind: Kind, name: str) -> dict[str, Any]:
    """How the server is told to keep its prefixes there, if it can."""
    if kind == OURS:
        return {"options": ["--prefix-cache-dir", str(bench.folder(name))]}
    return {"variables": prefix_cache_of(bench, kind, name)}


def first_turn(bench: Bench, server: Server, name: str) -> tuple[Messages, Answer]:
    """The conversation with its answer, of about 1,200 tokens."""
    writer = bench.writer
    messages = conversation(writer.text(40, name), writer.text(bench.size(1100, 120), f"u {name}"))
    answer = limited(bench, ask(server.port, server.chat("", 32, messages=messages)))
    return [*messages, {"role": "assistant", "content": answer.text}], answer


def follow_up(bench: Bench, server: Server, history: Messages, name: str) -> Answer:
    messages = [*history, {"role": "user", "content": bench.writer.text(20, name)}]
    answer: Answer = limited(bench, ask(server.port, server.chat("", 8, messages=messages)))
    return answer


def share(answer: Answer, history: Messages, bench: Bench) -> float:
    """Of the history's tokens: all of the prompt but the new turn and the marks around it."""
    num_new = len(bench.writer.token_ids(20, "new")) + 10
    return min(answer.num_cached_tokens / (answer.num_prompt_tokens - num_new), 1.0)


def conversation(system: str, user: str) -> Messages:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


SCENARIOS = (
    Scenario(
        "4",
        "8 streams at once over one new prefix of 1,000 tokens",
        (Figure(RATE, "1/s", "more"), Figure(CACHED, ""), Figure(OF_PROMPT, "", "more")),
        measure_shared_prefix,
    ),
    Scenario(
        "4b",
        "the same, mlx_vlm with its prefix cache switched on",
        (Figure(RATE, "1/s", "more"), Figure(CACHED, ""), Figure(OF_PROMPT, "", "more")),
        measure_shared_if_asked,
        kinds=(OURS, "mlx_vlm"),
    ),
    Scenario(
        "5",
        "second turn on 1,200 tokens",
        (
            Figure(TURN, "s", "less"),
            Figure(COLD, "s", "less"),
            Figure(CACHED, ""),
            Figure(OF_PROMPT, "", "more"),
        ),
        measure_second_turn,
        lambda bench: {
            TURN: run_bare(bench, "turn", bench.size(OLD_TOKENS, 120), NEW_TOKENS, bench.runs)
        },
    ),
    Scenario(
        "6",
        "the same after a swap, and after a restart",
        (
            Figure(COLD, "s", "less"),
            Figure(AFTER_SWAP, "s", "less"),
            Figure(SWAP_SHARE, "", "more"),
            Figure(AFTER_RESTART, "s", "less"),
            Figure(RESTART_SHARE, "", "more"),
        ),
        measure_kept,
    ),
)
