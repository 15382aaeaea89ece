"""A client that leaves takes its request with it, wherever that request is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mlx_server.engine.open_request import Take
from mlx_server.engine.sequence import Delta, Progress
from mlx_server.errors import GenerationFailed
from tests.asgi_client import Call, call, make_app, run
from tests.fake_engine import FakeEngine, started, until_steps

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = [
    pytest.param("/v1/chat/completions", CHAT, id="chat"),
    pytest.param("/v1/completions", {"prompt": ["a", "b"]}, id="completions"),
]


def endless() -> FakeEngine:
    return FakeEngine([started(), Delta(0, "a", 1)], endless=True)


async def assert_stopped(engine: FakeEngine) -> None:
    assert engine.num_closed == len(engine.requests) > 0
    num_steps = engine.num_steps
    for _ in range(20):
        await asyncio.sleep(0)
    assert engine.num_steps == num_steps


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_b066_leaving_a_stream_aborts_it(path: str, body: dict[str, Any]) -> None:
    async def work() -> None:
        engine = endless()
        request = Call(make_app(engine), path, {**body, "stream": True})
        await request.head()
        for _ in range(3):
            await request.piece()

        await request.hang_up()

        await assert_stopped(engine)

    run(work())


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_b066_leaving_a_whole_answer_aborts_it(path: str, body: dict[str, Any]) -> None:
    async def work() -> None:
        engine = endless()
        request = Call(make_app(engine), path, body)
        await until_steps(engine, 50)

        await request.hang_up()

        await assert_stopped(engine)
        assert (await request.head())[0] == 499

    run(work())


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stage", ["queued", "loading", "prefill"])
def test_b066_leaving_while_the_head_is_held_aborts(
    path: str, body: dict[str, Any], stream: bool, stage: Any
) -> None:
    async def work() -> None:
        engine = FakeEngine([Progress(stage, 0, 3), asyncio.Event(), started()])
        request = Call(make_app(engine), path, {**body, "stream": stream})
        await until_steps(engine, 2)

        await request.hang_up()

        await assert_stopped(engine)

    run(work())


def test_leaving_during_comments_aborts() -> None:
    async def work() -> None:
        engine = FakeEngine([asyncio.Event(), started()])
        app = make_app(engine, heartbeat_s=0.01)
        request = Call(app, "/v1/chat/completions", {**CHAT, "stream": True})
        await request.head()
        await request.piece()

        await request.hang_up()

        await assert_stopped(engine)

    run(work())


def test_the_next_request_is_served_after_one_was_left() -> None:
    async def work() -> None:
        engine = endless()
        app = make_app(engine)
        request = Call(app, "/v1/chat/completions", {**CHAT, "stream": True})
        await request.head()
        await request.hang_up()

        second = Call(app, "/v1/chat/completions", {**CHAT, "stream": True})

        assert (await second.head())[0] == 200
        await second.hang_up()
        await assert_stopped(engine)

    run(work())


def test_one_failing_prompt_aborts_the_others() -> None:
    class HalfBroken(FakeEngine):
        def submit(self, request: Any, take: Take) -> Any:
            if request.prompt.content == "b":
                raise GenerationFailed("Not this one.")
            return super().submit(request, take)

    engine = HalfBroken([started(), Delta(0, "a", 1)], endless=True)

    answer = call(make_app(engine), "/v1/completions", {"prompt": ["a", "b"]})

    assert answer.status == 500
    assert engine.num_closed == len(engine.requests) == 1


def test_b126_other_routes_answer_while_a_request_waits() -> None:
    async def work() -> None:
        engine = FakeEngine([Progress("loading"), asyncio.Event()])
        app = make_app(engine)
        waiting = Call(app, "/v1/chat/completions", CHAT)
        await until_steps(engine, 2)

        assert (await Call(app, "/health").answer()).status == 200
        assert (await Call(app, "/v1/models").answer()).status == 200
        assert (await Call(app, "/v1/chat/completions", b"{").answer()).status == 400
        await waiting.hang_up()

    run(work())
