"""Requests under way can be seen, and ended by somebody else than their clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mlx_server.engine.sequence import Delta, Progress
from tests.asgi_client import Answer, Call, call, chunks, make_app, run
from tests.fake_engine import MODEL, FakeEngine, answering, deltas, started, until_steps

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
PATHS = [
    pytest.param("/v1/chat/completions", CHAT, id="chat"),
    pytest.param("/v1/completions", {"model": "fake", "prompt": ["a", "b"]}, id="completions"),
]
WAITS = [Progress("queued", 0, 3), Progress("loading", 1, 4), Progress("prefill", 1, 9)]


def waiting(*told: Progress) -> FakeEngine:
    return FakeEngine([*told, asyncio.Event(), started()])


async def listed(app: Any) -> list[dict[str, Any]]:
    answer = await Call(app, "/v1/requests").answer()
    assert answer.status == 200
    assert answer.json["object"] == "list"
    entries: list[dict[str, Any]] = answer.json["data"]
    return entries


async def delete(app: Any, name: str, prefix: str = "/v1") -> Answer:
    return await Call(app, f"{prefix}/requests/{name}", method="DELETE").answer()


@pytest.mark.parametrize("progress", WAITS, ids=lambda progress: progress.stage)
def test_a_waiting_request_is_listed_with_what_it_waits_for(progress: Progress) -> None:
    async def work() -> None:
        engine = waiting(progress)
        app = make_app(engine)
        request = Call(app, "/v1/chat/completions", CHAT)
        await until_steps(engine, 2)

        (entry,) = await listed(app)

        age_s = entry.pop("age_s")
        assert entry == {
            "id": engine.requests[0].request_id,
            "object": "request",
            "request_id": engine.requests[0].request_id,
            "model": "fake",
            "state": progress.stage,
            "num_prompt_tokens": None,
            "num_completion_tokens": 0,
        }
        assert 0 <= age_s < 10
        await request.hang_up()
        assert await listed(app) == []

    run(work())


def test_a_running_request_is_listed_with_its_tokens() -> None:
    async def work() -> None:
        engine = FakeEngine([started(), Delta(0, "a", 1), Delta(0, "b", 2), asyncio.Event()])
        app = make_app(engine)
        request = Call(app, "/v1/chat/completions", {**CHAT, "stream": True})
        await until_steps(engine, 4)

        (entry,) = await listed(app)

        assert (entry["state"], entry["model"]) == ("decode", MODEL)
        assert (entry["num_prompt_tokens"], entry["num_completion_tokens"]) == (7, 2)
        await request.hang_up()

    run(work())


def test_requests_are_listed_in_the_order_in_which_they_came() -> None:
    async def work() -> None:
        engine = waiting()
        app = make_app(engine)
        requests = []
        for num_steps in (1, 2, 3):
            requests.append(Call(app, "/v1/chat/completions", CHAT))
            await until_steps(engine, num_steps)

        entries = await listed(app)

        assert [entry["id"] for entry in entries] == [r.request_id for r in engine.requests]
        for request in requests:
            await request.hang_up()

    run(work())


@pytest.mark.parametrize("stream", [False, True])
def test_a_complete_answer_is_not_listed_and_cannot_be_cancelled(stream: bool) -> None:
    async def work() -> None:
        engine = answering("done")
        app = make_app(engine)
        await Call(app, "/v1/chat/completions", {**CHAT, "stream": stream}).answer()

        assert await listed(app) == []
        answer = await delete(app, engine.requests[0].request_id)
        assert (answer.status, answer.error["code"]) == (404, "request_not_found")

    run(work())


def test_an_unknown_request_is_a_404_that_does_not_repeat_its_id() -> None:
    answer = call(make_app(answering("a")), "/v1/requests/chatcmpl-1", method="DELETE")

    assert answer.status == 404
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["code"] == "request_not_found"
    assert "chatcmpl-1" not in answer.error["message"]


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_cancelling_before_the_first_byte_is_a_409_for_the_client(
    path: str, body: dict[str, Any], stream: bool, prefix: str
) -> None:
    async def work() -> None:
        engine = waiting(WAITS[0])
        app = make_app(engine)
        request = Call(app, path, {**body, "n": 2, "stream": stream})
        await until_steps(engine, len(body.get("prompt", "1")))
        (entry,) = await listed(app)

        answer = await delete(app, entry["id"], prefix)

        assert answer.status == 200
        assert answer.json == {"id": entry["id"], "object": "request", "deleted": True}
        cancelled = await request.answer()
        assert cancelled.status == 409
        assert cancelled.error["code"] == "request_cancelled"
        assert cancelled.headers["x-should-retry"] == "false"
        assert engine.num_closed == len(engine.requests)
        assert await listed(app) == []

    run(work())


@pytest.mark.parametrize(("path", "body"), PATHS)
def test_cancelling_a_stream_ends_it_with_an_error(path: str, body: dict[str, Any]) -> None:
    async def work() -> bytes:
        engine = FakeEngine([started(), Delta(0, "a", 1)], endless=True)
        app = make_app(engine)
        request = Call(app, path, {**body, "stream": True})
        await request.head()
        (entry,) = await listed(app)

        assert (await delete(app, entry["id"])).status == 200
        assert (await delete(app, entry["id"])).status == 404

        read = b""
        while piece := await request.piece():
            read += piece
        assert engine.num_closed == len(engine.requests)
        return read

    *_, last = chunks(run(work()))

    assert last["error"]["code"] == "request_cancelled"
    assert last["choices"][0]["finish_reason"] == "error"


def test_cancelling_during_comments_ends_the_stream() -> None:
    async def work() -> bytes:
        engine = waiting()
        app = make_app(engine, heartbeat_s=0.01)
        request = Call(app, "/v1/chat/completions", {**CHAT, "stream": True})
        await request.head()
        await request.piece()
        await delete(app, engine.requests[0].request_id)
        read = b""
        while piece := await request.piece():
            read += piece
        return read

    (chunk,) = [c for c in chunks(run(work())) if "error" in c]

    assert chunk["error"]["code"] == "request_cancelled"


def test_the_id_of_the_header_ends_all_requests_that_bear_it_and_no_others() -> None:
    async def with_id(scope: Any, receive: Any, send: Any) -> None:
        name = dict(scope["headers"]).get(b"x-request-id")
        if name is not None:
            scope["state"]["request_id"] = name.decode()
        await app(scope, receive, send)

    async def work() -> None:
        requests = []
        for num_steps, name in enumerate(["mine/1", "mine/1", "other"], start=1):
            headers = {"content-type": "application/json", "x-request-id": name}
            requests.append(Call(with_id, "/v1/chat/completions", CHAT, headers=headers))
            await until_steps(engine, num_steps)

        assert (await delete(app, "mine/1")).status == 200

        assert [(await request.answer()).status for request in requests[:2]] == [409, 409]
        (left,) = await listed(app)
        assert left["request_id"] == "other"
        await requests[2].hang_up()

    engine = waiting()
    app = make_app(engine)
    run(work())


def test_the_next_request_is_served_after_a_cancelled_one() -> None:
    async def work() -> None:
        gate = asyncio.Event()
        engine = FakeEngine([gate, started(), *deltas("fine")])
        app = make_app(engine)
        request = Call(app, "/v1/chat/completions", CHAT)
        await until_steps(engine, 1)
        await delete(app, engine.requests[0].request_id)
        assert (await request.answer()).status == 409
        gate.set()

        answer = await Call(app, "/v1/chat/completions", CHAT).answer()

        assert answer.json["choices"][0]["message"]["content"] == "fine"

    run(work())
