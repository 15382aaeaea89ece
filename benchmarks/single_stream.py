"""One stream of the embedded default model against a bare loop over the same weights, in one run.

    .venv/bin/python benchmarks/single_stream.py [--prompt-tokens 512] [--tokens 64] [--runs 5]

The bare loop prefills in the same chunks and takes the likeliest token; the engine's runner does
what a request at temperature 0 does, and the server is asked over HTTP. Medians; ratios to the
bare loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from mlx_server.engine.blas import preload_blas

BLAS = preload_blas()

import httpx  # noqa: E402
import mlx.core as mx  # noqa: E402

from benchmarks.runners import make_runner  # noqa: E402
from mlx_server.catalog import Catalog  # noqa: E402
from mlx_server.config import EngineConfig, ServerConfig  # noqa: E402
from mlx_server.embedded import ensure_smollm2  # noqa: E402
from mlx_server.engine.device import prefill_step_size, prepare_device  # noqa: E402
from mlx_server.engine.engine import Engine  # noqa: E402
from mlx_server.engine.loaded_model import LoadedModel  # noqa: E402
from mlx_server.engine.loader import load_checkpoint  # noqa: E402
from mlx_server.engine.sequence import (  # noqa: E402
    Delta,
    GenerationRequest,
    RawPrompt,
    SamplingParams,
    Sequence,
    Started,
)
from mlx_server.main import create_app  # noqa: E402
from tests.live_server import live_server  # noqa: E402


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds to the first token, and seconds a token after it."""

    first: float
    each: float


def bare_loop(loaded: LoadedModel, ids: list[int], num_tokens: int) -> Timing:
    model, caches = loaded.language_model, loaded.make_caches()
    began = time.perf_counter()
    step = prefill_step_size()
    for start in range(0, len(ids) - 1, step):
        chunk = ids[start : min(start + step, len(ids) - 1)]
        model(mx.array([chunk]), cache=caches)
        mx.eval([cache.state for cache in caches])
    token = mx.argmax(model(mx.array([ids[-1:]]), cache=caches).logits[:, -1], axis=-1)
    mx.eval(token)
    first = time.perf_counter()
    for _ in range(num_tokens - 1):
        following = mx.argmax(model(token[:, None], cache=caches).logits[:, -1], axis=-1)
        mx.async_eval(following)
        token.tolist()
        token = following
    mx.eval(token)
    return Timing(first - began, (time.perf_counter() - first) / (num_tokens - 1))


def runner_loop(loaded: LoadedModel, ids: list[int], num_tokens: int) -> Timing:
    runner = make_runner(loaded, prefix_cache_bytes=0)
    request = GenerationRequest(
        "bench", None, RawPrompt(tuple(ids)), SamplingParams(temperature=0), max_tokens=num_tokens
    )
    sequence = Sequence(0, request, 0, loaded.id, seed=0, deadline=float("inf"))
    began = time.perf_counter()
    while not isinstance(runner.prefill(sequence).event, Started):
        pass
    runner.join(sequence)
    runner.decode()
    first = time.perf_counter()
    count = 1
    while True:
        ((_, delta),) = runner.decode()
        assert isinstance(delta, Delta)
        count = delta.num_completion_tokens
        if delta.finish_reason is not None:
            break
    return Timing(first - began, (time.perf_counter() - first) / max(count - 1, 1))


def over_http(client: httpx.Client, ids: list[int], num_tokens: int) -> Timing:
    body = {"prompt": ids, "max_tokens": num_tokens, "temperature": 0, "stream": True}
    began = first = last = time.perf_counter()
    count = 0
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["text"]:
                last = time.perf_counter()
                first = first if count else last
                count += 1
    return Timing(first - began, (last - first) / max(count - 1, 1))


def median(run: Callable[[], Timing], num_runs: int) -> Timing:
    timings = [run() for _ in range(num_runs)]
    return Timing(
        statistics.median(t.first for t in timings), statistics.median(t.each for t in timings)
    )


def row(name: str, timing: Timing, bare: Timing, num_prompt_tokens: int) -> str:
    return (
        f"| {name} | {num_prompt_tokens / timing.first:.0f} | {bare.first / timing.first:.2f} "
        f"| {1 / timing.each:.1f} | {bare.each / timing.each:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print(f"BLAS: {BLAS}")
    print("| | prompt tokens/s | of the bare loop | tokens/s | of the bare loop |")
    print("|---|---|---|---|---|")
    path = ensure_smollm2(ServerConfig().cache_dir, lambda stage, done, total: None)
    prepare_device()
    ids, bare, own = measure_in_process(path, args)
    print(row("bare loop", bare, bare, len(ids)))
    print(row("runner", own, bare, len(ids)))
    print(row("server over HTTP", serve_and_ask(path, ids, args), bare, len(ids)))


def measure_in_process(path: Path, args: Any) -> tuple[list[int], Timing, Timing]:
    loaded = load_checkpoint("smollm2", path, EngineConfig())
    # an ordinary text, whose continuation does not end early
    ids = loaded.tokenizer.encode(Path(__file__).read_text() * 4)[: args.prompt_tokens]
    bare_loop(loaded, ids, 4)
    bare = median(lambda: bare_loop(loaded, ids, args.tokens), args.runs)
    own = median(lambda: runner_loop(loaded, ids, args.tokens), args.runs)
    return ids, bare, own


def serve_and_ask(path: Path, ids: list[int], args: Any) -> Timing:
    config = replace(
        ServerConfig(), models=(str(path),), engine=EngineConfig(prefix_cache_bytes=0), drain_s=0.0
    )
    engine = Engine(config.engine, Catalog.from_config(config))
    with live_server(create_app(config, engine), config) as (host, port):
        base = f"http://{host}:{port}"
        with httpx.Client(base_url=base, timeout=300, trust_env=False) as client:
            over_http(client, ids, 4)
            return median(lambda: over_http(client, ids, args.tokens), args.runs)


if __name__ == "__main__":
    main()
