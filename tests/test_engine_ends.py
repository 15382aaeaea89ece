"""Clients leave, models fail, the server closes: whatever ends a request, the next one works."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mlx_server.config import EngineConfig, MediaLimits
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    ImagePart,
)
from mlx_server.errors import (
    EngineStopped,
    GenerationFailed,
    InvalidRequest,
    ModelLoadFailed,
    ModelUnavailable,
    ServerError,
)
from tests.engine_harness import (
    ONE_BY_ONE,
    Client,
    Running,
    go,
    make_engine,
    nobody,
    outcome,
    request,
    running_engine,
    until,
)
from tests.patience import HANG_S
from tests.picture_server import Request, picture_server
from tests.pictures import png
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint
from tests.worker_harness import TOKENS_AHEAD


async def count_after(running: Running, script: Script) -> int:
    """How many tokens are still computed after what has just happened."""
    before = script.num_tokens
    with pytest.raises(InvalidRequest):
        # takes its turn and computes no token
        await running.ask("x" * 10_000)
    return script.num_tokens - before


def test_b066_leaving_in_the_middle_of_an_answer_stops_it(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.token_s = 0.003
            script.say(*["x"] * 5000)
            script.say("fine")
            client, task = running.begin()
            await until(lambda: len(client.deltas) >= 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await count_after(running, script) <= TOKENS_AHEAD
            assert await running.ask() == "fine"

    go(main())


def test_b066_leaving_in_prefill_or_in_the_queue_computes_no_token(
    script: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.prefill_s = 0.002
            script.say("never")
            client, in_prefill = running.begin("y" * 4000)
            _, queued = running.begin("z")
            prefill = "prefill"
            await until(lambda: any(getattr(e, "stage", "") == prefill for e in client.events))
            for task in (queued, in_prefill):
                task.cancel()
            await asyncio.gather(queued, in_prefill, return_exceptions=True)
            assert await count_after(running, script) == 0
            assert script.log.count("prefill") == 0
            assert await running.ask() == "never"

    go(main())


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (RuntimeError("boom"), GenerationFailed, "generation_failed"),
        (RuntimeError("[METAL] Insufficient Memory"), ModelUnavailable, "out_of_memory"),
        (MemoryError("Unable to allocate 5 bytes"), ModelUnavailable, "out_of_memory"),
    ],
)
@pytest.mark.parametrize("place", [0, 2])
def test_b125_b127_a_failure_is_told_to_its_client_and_the_others_are_served(
    script: Script, tmp_path: Path, error: Exception, kind: type[ServerError], code: str, place: int
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say(*["x"] * place, error)
            script.say("queued")
            script.say("next")
            running.close_gates()
            tasks = [running.begin()[1] for _ in range(2)]
            await asyncio.sleep(0.05)
            running.open_gates()
            failed, queued = [await outcome(task) for task in tasks]
            assert isinstance(failed, kind)
            assert failed.code == code
            assert queued == "queued"
            assert await running.ask() == "next"
            assert running.engine.status().is_alive

    go(main())


def test_one_failing_answer_of_several_ends_the_request(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("t", RuntimeError("boom"))
            script.say("never")
            with pytest.raises(GenerationFailed):
                await running.ask(n=3)
            assert await count_after(running, script) <= TOKENS_AHEAD
            assert await running.ask() == "never"

    go(main())


def test_a_failed_load_is_told_and_leaves_a_working_engine(
    script: Script, other: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script, b=other) as running:
            other.load_error = ValueError("broken")
            script.say("fine")
            script.say("still fine")
            assert await running.ask() == "fine"
            with pytest.raises(ModelLoadFailed):
                await running.ask(model="b")
            assert running.engine.status().is_alive
            assert await running.ask() == "still fine"

    go(main())


def test_a_request_out_of_time_is_refused(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        config = EngineConfig(request_timeout_s=0.0)
        async with running_engine(tmp_path, config=config, a=script) as running:
            with pytest.raises(ModelUnavailable):
                await running.ask()

    go(main())


def test_closing_ends_what_runs_and_what_waits(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.token_s = 0.003
            script.say(*["x"] * 5000)
            client, first = running.begin()
            _, second = running.begin()
            await until(lambda: len(client.deltas) > 2)
            began = time.monotonic()
            await running.engine.close()
            assert time.monotonic() - began < 3
            for task in (first, second):
                assert isinstance(await outcome(task), EngineStopped)
            with pytest.raises(EngineStopped):
                await running.engine.submit(request(), nobody)
            assert running.engine.status().state == "stopped"
            await running.engine.close()

    go(main())


def test_what_a_close_cuts_off_is_kept_on_disk(script: Script, tmp_path: Path) -> None:
    config = replace(ONE_BY_ONE, prefix_cache_dir=tmp_path / "kv")
    paths = [write_scripted_checkpoint(tmp_path / "a")]
    asked = "a long question " * 10
    script.token_s = 0.003
    script.say(*["x"] * 5000)

    async def cut_off() -> None:
        engine = make_engine(tmp_path, paths, config, ScriptedLoader(a=script))
        await engine.start()
        client = Client()
        task = asyncio.create_task(client.read(engine, request(asked)))
        await until(lambda: len(client.deltas) > 70)
        await engine.close()
        assert isinstance(await outcome(task), EngineStopped)

    async def ask_again() -> None:
        engine = make_engine(tmp_path, paths, config, ScriptedLoader(a=script))
        await engine.start()
        client = await Client().read(engine, request(asked + "x" * 64, max_tokens=1))
        await engine.close()
        assert client.started.num_cached_tokens > len(asked) + 20

    go(cut_off())
    go(ask_again())


def test_closing_gives_those_who_run_their_time(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.token_s = 0.003
            script.say(*["x"] * 50)
            client, task = running.begin()
            await until(lambda: len(client.deltas) > 2)
            closing = asyncio.create_task(running.engine.close(drain_s=10))
            await asyncio.sleep(0)
            with pytest.raises(EngineStopped):
                await running.engine.submit(request(), nobody)
            assert (await task).text() == "x" * 50
            await closing

    go(main())


def test_closing_does_not_wait_for_an_engine_that_never_started(tmp_path: Path) -> None:
    paths = [write_scripted_checkpoint(tmp_path / "a")]
    engine = make_engine(tmp_path, paths, EngineConfig(), ScriptedLoader(a=Script()))
    go(engine.close())


def test_a_request_that_is_still_fetching_its_image_is_ended_by_the_close(
    script: Script, tmp_path: Path
) -> None:
    release = threading.Event()

    def hang(answer: Request) -> None:
        release.wait(HANG_S)
        answer.start(200)
        answer.wfile.write(png())

    async def main() -> None:
        path = write_scripted_checkpoint(tmp_path / "a", vision_config={"hidden_size": 1})
        config = EngineConfig(media=MediaLimits(allow_private_urls=True))
        with picture_server({"/x.png": hang}) as server:
            engine = make_engine(tmp_path, [path], config, ScriptedLoader(a=script))
            await engine.start()
            message = ChatMessage("user", (ImagePart(f"{server.url}/x.png", "p"),))
            asked = replace(request(), prompt=ChatPrompt((message,)))
            task = asyncio.create_task(Client().read(engine, asked))
            await until(lambda: bool(server.seen))
            await engine.close()
            release.set()
            assert isinstance(await outcome(task), EngineStopped)

    go(main())


def test_a_request_that_was_let_in_is_refused_after_the_close(
    script: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            generation = await running.engine.submit(request(), nobody)
            await running.engine.close()
            with pytest.raises(EngineStopped):
                await generation

    go(main())
