"""How streams are held, kept alive, framed and ended."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from mlx_server.api import sse
from mlx_server.engine.sequence import Delta, Progress, TokenLogprob
from mlx_server.errors import ContextLengthExceeded, GenerationFailed
from tests.asgi_client import Answer, Call, call, chunks, make_app, run
from tests.fake_engine import FakeEngine, deltas, started

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
COMPLETION: dict[str, Any] = {"prompt": "hi", "stream": True}
ENDPOINTS = [
    pytest.param("/v1/chat/completions", CHAT, id="chat"),
    pytest.param("/v1/completions", COMPLETION, id="completion"),
]
SOON = 0.01
NEVER = 1000.0
MAX_LINE_BYTES = 32 * 1024


def text_of(choice: dict[str, Any]) -> str:
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_the_head_waits_for_the_prompt_to_be_read(path: str, body: dict[str, Any]) -> None:
    async def work() -> None:
        gate = asyncio.Event()
        engine = FakeEngine([Progress("prefill", 1, 2), gate, started(), *deltas("a")])
        request = Call(make_app(engine, heartbeat_s=NEVER), path, body)
        while engine.num_steps < 2:
            await asyncio.sleep(0)
        assert request.is_silent

        gate.set()

        answer = await request.answer()
        assert answer.status == 200
        assert not answer.body.startswith(b":")

    run(work())


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_b016_a_failure_before_the_first_byte_has_a_status(path: str, body: dict[str, Any]) -> None:
    error = ContextLengthExceeded(100, 64)
    engine = FakeEngine([Progress("prefill", 1, 2), error])

    answer = call(make_app(engine), path, body)

    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert {"100", "64"} <= set(re.findall(r"\d+", answer.error["message"]))


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_an_unknown_model_is_a_404_however_long_the_disk_takes(
    path: str, body: dict[str, Any]
) -> None:
    async def work() -> Answer:
        engine = FakeEngine()
        engine.disk.clear()
        app = make_app(engine, heartbeat_s=0.0)
        request = Call(app, path, {**body, "model": "no/such"})
        for _ in range(50):
            await asyncio.sleep(0)
        assert request.is_silent
        engine.disk.set()
        return await request.answer()

    assert run(work()).status == 404


@pytest.mark.parametrize(
    ("progress", "comment"),
    [
        (Progress("queued", 0, 3), ": queued 3\n\n"),
        (Progress("loading", 40, 100), ": loading 40%\n\n"),
        (Progress("loading"), ": loading\n\n"),
        (Progress("prefill", 2048, 9000), ": prefill 2048/9000\n\n"),
        (None, ": keep-alive\n\n"),
    ],
)
def test_b011_a_silent_wait_is_kept_alive_by_a_timer(
    progress: Progress | None, comment: str
) -> None:
    async def work() -> None:
        gate = asyncio.Event()
        waiting: list[Any] = [gate] if progress is None else [progress, gate]
        app = make_app(FakeEngine([*waiting, started(), *deltas("a")]), heartbeat_s=SOON)
        request = Call(app, "/v1/chat/completions", CHAT)

        status, _ = await request.head()
        comments = [(await request.piece()).decode() for _ in range(3)]
        gate.set()

        assert status == 200
        assert comments == [comment] * 3

    run(work())


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_b009_comments_change_nothing_about_the_stream(path: str, body: dict[str, Any]) -> None:
    async def work() -> tuple[bytes, bytes]:
        gate = asyncio.Event()
        script = [gate, started(), *deltas("a", "b")]
        request = Call(make_app(FakeEngine(script), heartbeat_s=SOON), path, body)
        await request.head()
        comment = await request.piece()
        gate.set()
        rest = b""
        while piece := await request.piece():
            rest += piece
        return comment, rest

    comment, rest = run(work())

    assert comment.startswith(b": keep-alive")
    frames = chunks(rest)
    assert len({(frame["id"], frame["model"], frame["created"]) for frame in frames}) == 1
    assert frames[0]["model"] == "org/fake"
    assert "".join(text_of(frame["choices"][0]) for frame in frames) == "ab"


def test_a_pause_between_tokens_is_kept_alive() -> None:
    async def work() -> None:
        gate = asyncio.Event()
        script = [started(), Delta(0, "a", 1), gate, *deltas("b")]
        app = make_app(FakeEngine(script), heartbeat_s=SOON)
        request = Call(app, "/v1/chat/completions", CHAT)
        await request.head()
        while not (await request.piece()).startswith(b": keep-alive"):
            pass
        gate.set()
        while b'"b"' not in await request.piece():
            pass
        await request.hang_up()

    run(work())


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("error", [GenerationFailed("It broke."), RuntimeError("boom /Users/x")])
def test_b018_a_failure_in_the_stream_is_a_chunk_with_an_error(
    path: str, body: dict[str, Any], error: Exception
) -> None:
    async def work() -> Answer:
        gate = asyncio.Event()
        script = [started(), Delta(0, "a", 1), Delta(0, "b", 2), gate, error]
        request = Call(make_app(FakeEngine(script)), path, body)
        status, headers = await request.head()
        read = b""
        while b'"b"' not in read:
            read += await request.piece()
        gate.set()
        while piece := await request.piece():
            read += piece
        return Answer(status, headers, read)

    answer = run(work())

    assert answer.status == 200
    *before, last = answer.chunks
    assert "".join(text_of(chunk["choices"][0]) for chunk in before) == "ab"
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in before)
    (choice,) = last["choices"]
    assert choice["finish_reason"] == "error"
    assert text_of(choice) == ""
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["type"] == "server_error"
    assert last["id"] == before[0]["id"]
    assert b"boom" not in answer.body
    assert b"Traceback" not in answer.body


def test_b011_a_failure_after_the_first_comment_ends_the_stream() -> None:
    async def work() -> bytes:
        gate = asyncio.Event()
        engine = FakeEngine([gate, GenerationFailed("It broke.")])
        request = Call(make_app(engine, heartbeat_s=SOON), "/v1/chat/completions", CHAT)
        await request.head()
        await request.piece()
        gate.set()
        read = b""
        while piece := await request.piece():
            read += piece
        return read

    (chunk,) = [c for c in chunks(run(work())) if "error" in c]

    assert chunk["error"]["message"] == "It broke."
    assert chunk["choices"][0]["finish_reason"] == "error"


TOOLS = [{"type": "function", "function": {"name": "write"}}]
LONG = 'é"\n\x01😀\u2028' * 20_000


def lines(body: bytes) -> list[bytes]:
    assert b"\r" not in body
    return body.split(b"\n")


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_b129_no_line_is_too_long_for_a_router_when_the_text_is(
    path: str, body: dict[str, Any]
) -> None:
    answer = call(make_app(FakeEngine([started(), *deltas(LONG)])), path, body)

    assert max(map(len, lines(answer.body))) <= MAX_LINE_BYTES
    assert "".join(text_of(chunk["choices"][0]) for chunk in answer.chunks) == LONG


def test_b129_no_line_is_too_long_for_a_router_when_a_tool_call_is() -> None:
    arguments = json.dumps({"text": LONG}, ensure_ascii=False)
    call_text = f'<tool_call>{{"name":"write","arguments":{arguments}}}</tool_call>'
    engine = FakeEngine([started(tool_format="json_tools"), *deltas(call_text)])

    answer = call(make_app(engine), "/v1/chat/completions", {**CHAT, "tools": TOOLS})

    assert max(map(len, lines(answer.body))) <= MAX_LINE_BYTES
    calls = [c["choices"][0]["delta"].get("tool_calls", []) for c in answer.chunks]
    joined = "".join(part["function"]["arguments"] for parts in calls for part in parts)
    assert json.loads(joined) == {"text": LONG}


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_b129_no_line_is_too_long_for_a_router_when_logprobs_are(
    path: str, body: dict[str, Any]
) -> None:
    token = "\x01" * 40
    top = tuple(TokenLogprob(token + str(i), b"\xff" * 40, -1 / 3) for i in range(5))
    entries = tuple(TokenLogprob(token, b"\xff" * 40, -1 / 3, top) for _ in range(200))
    delta = Delta(0, "\x01" * 8000, 200, entries)
    engine = FakeEngine([started(), delta, *deltas()])

    answer = call(make_app(engine), path, {**body, "logprobs": "chat" in path or 5})

    assert max(map(len, lines(answer.body))) <= MAX_LINE_BYTES
    parts = [chunk["choices"][0]["logprobs"] or {} for chunk in answer.chunks]
    num_tokens = [len(part.get("content") or part.get("tokens") or []) for part in parts]
    assert sum(num_tokens) == 200


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_lines_do_not_break_where_some_readers_would(path: str, body: dict[str, Any]) -> None:
    text = "a\u2028b\u2029c\x85d"
    answer = call(make_app(FakeEngine([started(), *deltas(text)])), path, body)

    assert len(answer.body.decode().splitlines()) == len(lines(answer.body)) - 1
    assert "".join(text_of(chunk["choices"][0]) for chunk in answer.chunks) == text


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_letters_of_all_kinds_are_written_as_they_are(path: str, body: dict[str, Any]) -> None:
    answer = call(make_app(FakeEngine([started(), *deltas("hi😀é漢")])), path, body)

    assert "hi😀é漢" in answer.body.decode()


def test_tokens_are_sent_as_they_come() -> None:
    async def work() -> None:
        gates = [asyncio.Event() for _ in range(3)]
        script: list[Any] = [started()]
        for count, gate in enumerate(gates, start=1):
            script += [gate, Delta(0, f"t{count}", count)]
        app = make_app(FakeEngine([*script, *deltas()]))
        request = Call(app, "/v1/chat/completions", CHAT)
        await request.head()
        assert b'"role":"assistant"' in await request.piece()
        for count, gate in enumerate(gates, start=1):
            gate.set()
            assert f'"t{count}"'.encode() in await request.piece()

    run(work())


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
def test_a_client_too_far_behind_is_told_and_holds_no_more_memory(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "MAX_UNSENT_CHARS", 5000)

    async def work() -> tuple[FakeEngine, Answer]:
        engine = FakeEngine([started(), Delta(0, "a", 1)], endless=True)
        app, has_room = make_app(engine), asyncio.Event()

        async def full(scope: Any, receive: Any, send: Any) -> None:
            async def send_later(message: Any) -> None:
                await has_room.wait()
                await send(message)

            await app(scope, receive, send_later)

        request = Call(full, path, body)
        while engine.num_closed == 0:
            await asyncio.sleep(0)
        has_room.set()
        return engine, await request.answer()

    engine, answer = run(work())

    *written, last = answer.chunks
    assert last["error"]["code"] == "generation_failed"
    text = "".join(text_of(chunk["choices"][0]) for chunk in written)
    assert text == "a" * (engine.num_steps - 1)
    assert 5000 < len(answer.body) < 10_000
