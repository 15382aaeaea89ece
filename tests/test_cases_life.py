"""Reported faults of servers like this one, replayed through the whole server: waiting, leaving,
failing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from mlx_server.config import EngineConfig, ServerConfig
from tests.scripted import NOT_A_NUMBER, Script
from tests.scripted_server import CHAT, Body, Served, Stream, chat_body, scripted_server, wait_for

CALL = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
HEARTBEAT_S = 0.05


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    config = ServerConfig(heartbeat_s=HEARTBEAT_S)
    with scripted_server(tmp_path, config=config, m=script) as served:
        yield served
        script.gate.set()


def test_b009_heartbeats_are_comments_and_lose_no_call(served: Served, script: Script) -> None:
    script.prefill_s = 4 * HEARTBEAT_S
    script.say(*CALL)
    stream = served.stream(tools=[TOOL])
    assert any("prefill" in c or "loading" in c or c == ": keep-alive" for c in stream.comments)
    assert len(stream.tool_calls) == 1
    assert stream.frames[0]["choices"][0]["delta"]["role"] == "assistant"


def test_b010_one_id_model_and_time_over_all_frames(served: Served, script: Script) -> None:
    script.prefill_s = 2 * HEARTBEAT_S
    script.say("a", "b", "c")
    stream = served.stream("/v1/completions", prompt="abc", stream_options={"include_usage": True})
    assert stream.content == "abc"
    for key in ("id", "model", "created"):
        assert len({frame[key] for frame in stream.frames}) == 1


def test_b011_heartbeats_come_by_the_clock(served: Served, script: Script) -> None:
    script.gate.clear()
    with served.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
        lines = answer.iter_lines()
        heartbeats = [line for line, _ in zip(lines, range(6), strict=False) if line]
        assert all(line.startswith(": ") for line in heartbeats)
        assert len(heartbeats) == 3
        script.gate.set()


def test_a_waiting_stream_says_what_it_waits_for(served: Served, script: Script) -> None:
    served.chat()
    script.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(served.chat)
        wait_for(lambda: served.engine.status().num_running == 1)
        second = pool.submit(served.stream)
        wait_for(lambda: served.engine.status().num_waiting == 1)
        time.sleep(3 * HEARTBEAT_S)
        script.gate.set()
        first.result()
        assert ": queued 1" in second.result().comments


def test_b018_failure_after_text_is_one_error_frame_then_done(
    served: Served, script: Script
) -> None:
    script.say("a", "b", RuntimeError("boom /Users/x"))
    script.say("fine")
    stream = served.stream()
    assert stream.content in ("a", "ab"), "the batch runs one step ahead"
    last = stream.frames[-1]
    assert sorted(last["error"]) == ["code", "message", "param", "type"]
    assert stream.finish_reasons == ["error"]
    assert stream.is_done
    assert "boom" not in str(last)
    assert "/Users" not in str(last)
    assert served.chat()["choices"][0]["message"]["content"] == "fine"


def test_b125_a_failing_request_costs_no_other(served: Served, script: Script) -> None:
    script.say(RuntimeError("prefill"))
    script.say("a", RuntimeError("decode"))
    script.say("fine")
    statuses = [served.client.post(CHAT, json=chat_body()).status_code for _ in range(3)]
    assert statuses == [500, 500, 200]
    assert served.client.get("/health").status_code == 200


def test_b125_queued_requests_are_served_after_a_failure(served: Served, script: Script) -> None:
    script.say(RuntimeError("prefill"))
    script.say("fine")
    script.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(served.client.post, CHAT, json=chat_body()) for _ in range(3)]
        wait_for(lambda: served.engine.status().num_waiting == 2)
        script.gate.set()
        assert sorted(a.result().status_code for a in answers) == [200, 200, 500]


@pytest.mark.parametrize("stream", [False, True])
def test_b127_out_of_memory_ends_the_request_alone(
    served: Served, script: Script, stream: bool
) -> None:
    script.say("a", "b", RuntimeError("[METAL] Command buffer: Insufficient Memory (0000008)"))
    script.say("fine")
    answer = served.client.post(CHAT, json=chat_body(stream=stream))
    if stream:
        assert Stream.read(answer).frames[-1]["error"]["code"] == "out_of_memory"
    else:
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "out_of_memory"
    assert served.chat()["choices"][0]["message"]["content"] == "fine"


def test_b066_generation_ends_when_a_stream_s_reader_leaves(served: Served, script: Script) -> None:
    script.token_s = 0.01
    script.say(*["x"] * 3000)
    script.say("fine")
    with served.client.stream("POST", CHAT, json=chat_body(stream=True)) as answer:
        lines = answer.iter_lines()
        while "content" not in next(lines):
            pass
    wait_for(lambda: served.engine.status().num_running == 0)
    num_tokens = script.num_tokens
    assert num_tokens < 100
    assert served.chat()["choices"][0]["message"]["content"] == "fine"


def test_b066_generation_ends_when_nobody_waits_for_the_answer(
    served: Served, script: Script
) -> None:
    script.token_s = 0.01
    script.say(*["x"] * 3000)
    script.say("fine")
    with pytest.raises(httpx.ReadTimeout):
        served.client.post(CHAT, json=chat_body(), timeout=0.3)
    wait_for(lambda: served.engine.status().num_running == 0)
    assert script.num_tokens < 200
    assert served.chat()["choices"][0]["message"]["content"] == "fine"


def test_b066_leaving_while_queued_or_in_prefill_frees_the_place(
    served: Served, script: Script
) -> None:
    served.chat()
    script.gate.clear()
    for _ in range(2):
        with pytest.raises(httpx.ReadTimeout):
            served.client.post(CHAT, json=chat_body(), timeout=0.2)
    script.gate.set()
    wait_for(lambda: served.engine.status().num_running == 0)
    num_tokens = script.num_tokens
    served.chat()
    assert script.num_tokens <= num_tokens + 2


def test_b122_a_short_request_beside_a_long_stream_answers_as_alone(
    served: Served, script: Script
) -> None:
    script.token_s = 0.005
    script.say(*["long "] * 40)
    script.say("title")
    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(served.stream)
        wait_for(lambda: script.num_tokens > 2)
        short = pool.submit(served.chat)
        assert stream.result().content == "long " * 40
        assert short.result()["choices"][0]["message"]["content"] == "title"


def test_b016_a_client_s_fault_is_a_400_while_others_are_answered(
    script: Script, tmp_path: Path
) -> None:
    script.token_s = 0.01
    script.say(*["x"] * 100)
    config = ServerConfig(heartbeat_s=0.2)
    with (
        scripted_server(
            tmp_path, config=config, engine_config=EngineConfig(context_length=200), m=script
        ) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(served.chat)
        wait_for(lambda: script.num_tokens > 2)
        body = chat_body(messages=[{"role": "user", "content": "x" * 300}], stream=True)
        answer = served.client.post(CHAT, json=body)
        assert not running.done()
        running.result()
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}], ids=["plain", "logprobs"])
def test_logits_that_are_no_numbers_are_an_error_and_no_text(
    served: Served, script: Script, fields: Body
) -> None:
    script.say("a", NOT_A_NUMBER, "b")
    answer = served.client.post(CHAT, json=chat_body(**fields))
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "generation_failed"


def test_a_failure_leaves_no_state_behind(served: Served, script: Script) -> None:
    script.say("a", "b", RuntimeError("boom"))
    script.say("fine")
    served.client.post(CHAT, json=chat_body())
    body = served.chat()
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_prompt_that_breaks_the_tokenizer_costs_nobody_else_their_state(
    served: Served, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.say("fine")
    served.chat()
    monkeypatch.setattr("mlx_server.engine.runner.prepare", lambda *_: 1 / 0)
    assert served.client.post(CHAT, json=chat_body()).status_code == 500
    monkeypatch.undo()
    assert served.chat()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_full_queue_is_a_429_with_retry_after(tmp_path: Path) -> None:
    script = Script()
    script.say("fine")
    with scripted_server(tmp_path, engine_config=EngineConfig(max_waiting=1), m=script) as served:
        served.chat()
        script.gate.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(served.chat)
            wait_for(lambda: served.engine.status().num_running == 1)
            answer = served.client.post(CHAT, json=chat_body())
            script.gate.set()
            first.result()
    assert answer.status_code == 429
    assert "retry-after" in answer.headers


def test_b012_a_stream_under_way_ends_with_an_error_however_long_a_step_takes(
    served: Served, script: Script
) -> None:
    script.say(*["x"] * 50)
    with ThreadPoolExecutor(1) as pool:
        script.token_s = 0.05
        stream = pool.submit(served.stream)
        wait_for(lambda: script.num_tokens > 3)
        script.gate.clear()
        loop = served.engine._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(served.engine.close(0.0), loop)
        assert stream.result().finish_reasons == ["error"]
        assert stream.result().is_done
        script.gate.set()
