"""What the engine tells of those who wait, and what it does while its thread is busy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import EngineConfig
from mlx_server.engine import engine as engine_module
from mlx_server.engine.engine import Engine
from mlx_server.engine.sequence import Progress
from mlx_server.engine.status import EngineStatus
from mlx_server.errors import EngineStopped
from tests.engine_harness import (
    ONE_BY_ONE,
    Client,
    Running,
    go,
    hold_opening,
    make_engine,
    nobody,
    outcome,
    request,
    running_engine,
    until,
)
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint


def progress_of_all(engine: Engine) -> list[Progress | None]:
    return [engine.progress(request_id) for request_id in engine._open]


def test_the_place_in_the_queue_is_that_of_now(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("fine")
            await running.ask()
            running.close_gates()
            tasks = [running.begin(text)[1] for text in ("first", "second", "third")]
            await until(lambda: running.engine.status().num_running == 1)
            *_, second, third = progress_of_all(running.engine)
            assert (second, third) == (Progress("queued", 0, 1), Progress("queued", 0, 2))

            tasks[1].cancel()
            await outcome_of_cancelled(tasks[1])

            assert progress_of_all(running.engine)[-1] == Progress("queued", 0, 1)
            running.open_gates()
            await asyncio.gather(tasks[0], tasks[2])

    go(main())


async def outcome_of_cancelled(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


def test_waiting_and_running_are_counted_in_answers(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        config = EngineConfig(max_num_seqs=3)
        async with running_engine(tmp_path, config=config, a=script) as running:
            engine = running.engine
            script.say(*["x"] * 5000)
            script.token_s = 0.003
            tasks = [running.begin(n=3)[1]]
            await until(lambda: engine.status().num_running == 3)
            tasks += [running.begin(n=n)[1] for n in (1, 2)]
            await until(lambda: engine.status().num_waiting == 3)
            assert engine.status().num_running == 3
            for task in tasks:
                task.cancel()
                await outcome_of_cancelled(task)
            assert engine.status().num_waiting == 0

    go(main())


def test_a_prefill_is_told_in_tokens_until_it_is_over(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say(*["x"] * 500)
            script.prefill_s = script.token_s = 0.005
            client, task = running.begin("y" * 100)
            await until(lambda: any(told and told.stage == "prefill" for told in now(running)))
            (told,) = now(running)
            assert told is not None
            assert told.total == 100
            await until(lambda: bool(client.deltas))
            assert now(running) == [None]
            task.cancel()
            await outcome_of_cancelled(task)
            assert running.engine.progress("request-unheard-of") is None

    go(main())


def now(running: Running) -> list[Progress | None]:
    return progress_of_all(running.engine)


def test_a_load_is_told_to_those_who_came_before_it_and_during_it(
    script: Script, other: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script, b=other) as running:
            script.say("a")
            other.say("b")
            await running.ask()
            other.load_s = 0.2
            tasks = [running.begin(model="b")[1]]
            await until(lambda: running.engine.status().loading == "b")
            tasks += [running.begin(model=model)[1] for model in ("b", "a")]
            await until(lambda: len(running.engine._open) == 3)
            assert [told and told.stage for told in now(running)] == [
                "loading",
                "loading",
                "queued",
            ]
            await asyncio.gather(*tasks)

    go(main())


def test_a_load_is_told_by_its_bytes_and_never_as_done() -> None:
    status = EngineStatus(loading="a", num_bytes_to_load=100, active_memory_bytes=40)
    assert status.load_progress == Progress("loading", 40, 100)
    wider = EngineStatus(loading="a", num_bytes_to_load=100, active_memory_bytes=170)
    assert wider.load_progress == Progress("loading", 99, 100)
    assert EngineStatus(loading="a", active_memory_bytes=5).load_progress == Progress("loading")


def test_the_cache_is_cleared_between_steps_and_its_numbers_are_told(
    script: Script, tmp_path: Path
) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            engine = running.engine
            assert (await engine.clear_prefix_cache()).num_entries == 0
            script.say("fine")
            await running.ask("hello")
            await until(lambda: engine.status().prefix_cache.num_entries == 1)
            told = engine.status().prefix_cache
            assert 0 < told.num_bytes < told.max_bytes

            assert await engine.clear_prefix_cache() == told

            await until(lambda: engine.status().prefix_cache.num_entries == 0)
            assert engine.status().prefix_cache.num_bytes == 0

    go(main())


def test_a_clearing_that_has_to_wait_says_so_and_is_done_later(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "CLEAR_TIMEOUT_S", 0.02)

    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("fine")
            await running.ask("hello")
            running.close_gates()
            _, task = running.begin("something else")
            await until(lambda: running.engine.status().num_running == 1)
            with pytest.raises(TimeoutError):
                await running.engine.clear_prefix_cache()
            assert running.engine.status().prefix_cache.num_entries == 1
            running.open_gates()
            await task
            await until(lambda: running.engine.status().prefix_cache.num_entries == 1)
            script.say("fine")
            again, asked = running.begin("hello")
            await asked
            assert again.started.num_cached_tokens == 0

    go(main())


def test_the_cache_of_a_closed_engine_cannot_be_cleared(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("fine")
            await running.ask()
            await running.engine.close()
            with pytest.raises(EngineStopped):
                await running.engine.clear_prefix_cache()

    go(main())


def test_the_first_model_is_loading_from_the_start(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        path = write_scripted_checkpoint(tmp_path / "a")
        engine = make_engine(tmp_path, [path], EngineConfig(), ScriptedLoader(a=script))
        seen = set()

        def is_ready() -> bool:
            seen.add(engine.status().state)
            return engine.status().state == "ready"

        await engine.start("a")
        await until(is_ready)
        await engine.close()
        assert seen == {"loading", "ready"}

    go(main())


def test_a_request_that_comes_before_mlx_waits_for_it(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = hold_opening(monkeypatch)

    async def main() -> None:
        async with running_engine(tmp_path, a=script) as running:
            script.say("fine")
            _, task = running.begin()
            await until(lambda: now(running) == [Progress("queued", 0, 0)])
            assert running.engine.status().num_waiting == 1
            gate.set()
            assert (await task).text() == "fine"

    go(main())


@pytest.mark.parametrize("kind", [ImportError, OSError, RuntimeError, ValueError, KeyError])
def test_without_mlx_the_server_is_not_healthy_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("libmlx.so: cannot open /opt/x")

    monkeypatch.setattr(engine_module, "open_worker", fail)

    async def main() -> None:
        path = write_scripted_checkpoint(tmp_path / "a")
        engine = make_engine(tmp_path, [path], EngineConfig(), ScriptedLoader(a=Script()))
        await engine.start("a")
        early = asyncio.create_task(Client().read(engine, request()))
        await until(lambda: not engine.status().is_alive)
        assert engine.status().load_error is not None
        assert "/opt" not in engine.status().load_error
        with pytest.raises(EngineStopped):
            await early
        with pytest.raises(EngineStopped):
            await engine.submit(request(), nobody)
        await engine.close()

    go(main())


def test_a_close_before_mlx_is_there_ends_those_who_wait(script: Script, tmp_path: Path) -> None:
    async def main() -> None:
        path = write_scripted_checkpoint(tmp_path / "a")
        engine = make_engine(tmp_path, [path], EngineConfig(), ScriptedLoader(a=script))
        running = Running(engine, ScriptedLoader(a=script), {})
        await engine.start("a")
        _, task = running.begin()
        await asyncio.sleep(0)
        await engine.close()
        assert isinstance(await outcome(task), EngineStopped)
        assert engine.status().state == "stopped"
        assert script.log == []

    go(main())


@pytest.mark.parametrize("first_is_broken", [False, True])
def test_how_the_first_load_ended_is_known_after_others_have_followed(
    script: Script, other: Script, tmp_path: Path, first_is_broken: bool
) -> None:
    async def main() -> None:
        paths = [write_scripted_checkpoint(tmp_path / name) for name in "ab"]
        loader = ScriptedLoader(a=script, b=other)
        broken = script if first_is_broken else other
        broken.load_error = ValueError("broken")
        engine = make_engine(tmp_path, paths, ONE_BY_ONE, loader)
        # nobody asks for the status before the second load is over
        await engine.start("a")
        worker = await engine._opened_worker()
        worker.submit(engine._make_sequences(request(), engine.catalog.resolve("b"), []))
        await until(lambda: loader.loads == ["a", "b"])
        await until(lambda: worker.status.loading is None)

        status = engine.status()
        await engine.close()
        assert status.preloaded == (None if first_is_broken else "a")
        assert (status.preload_error is not None) is first_is_broken

    go(main())
