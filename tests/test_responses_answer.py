"""The response as one object and as a stream of events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mlx_server.engine.sequence import Delta, FinishReason, TokenLogprob
from mlx_server.errors import ContextLengthExceeded, EngineOverloaded, GenerationFailed
from tests.asgi_client import Call, call, make_app, run
from tests.fake_engine import FakeEngine, answering, deltas, started
from tests.openapi_schema import check
from tests.responses_requests import CALL, PATH, TOOL, USER_HI, events_of, kinds

MAX_LINE_BYTES = 32 * 1024
WEATHER = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
THINKING = {"reasoning_format": "think", "is_reasoning": True}
TOOLS: dict[str, Any] = {"tools": [TOOL]}


def whole(engine: FakeEngine, **fields: Any) -> dict[str, Any]:
    answer = call(make_app(engine), PATH, {"input": "hi", **fields})
    assert answer.status == 200, answer.body
    check("Response", answer.json)
    response: dict[str, Any] = answer.json
    return response


def streamed(engine: FakeEngine, **fields: Any) -> list[dict[str, Any]]:
    answer = call(make_app(engine), PATH, {"input": "hi", "stream": True, **fields})
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.body)
    for event in events:
        check("ResponseStreamEvent", event)
    return events


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


def test_a_whole_response_says_all_that_the_schema_wants() -> None:
    response = whole(answering("Hel", "lo"), metadata={"a": "b"}, user="me", temperature=0.5)

    assert response["id"].startswith("resp_")
    assert response["object"] == "response"
    assert response["status"] == "completed"
    assert response["error"] is None
    assert response["incomplete_details"] is None
    assert response["model"] == "org/fake"
    assert (response["metadata"], response["user"]) == ({"a": "b"}, "me")
    assert (response["temperature"], response["store"]) == (0.5, True)
    assert response["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    (item,) = response["output"]
    assert item["id"].startswith("msg_")
    assert (item["role"], item["status"]) == ("assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert response["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 9,
    }


def test_reasoning_and_calls_are_items_of_their_own() -> None:
    engine = answering(
        "I wonder", "</think>", "I look. ", WEATHER, tool_format="json_tools", **THINKING
    )

    response = whole(engine, **TOOLS)

    reasoning, message, function_call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "I wonder"}]
    assert (reasoning["summary"], reasoning["status"]) == ([], "completed")
    assert message["content"][0]["text"].strip() == "I look."
    assert function_call["call_id"] not in ("", function_call["id"])
    assert (function_call["name"], function_call["arguments"]) == ("f", '{"a":1}')
    assert function_call["status"] == "completed"
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2


def test_the_events_of_a_text_come_in_order() -> None:
    events = streamed(answering("Hel", "lo"))

    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[2]["item"]["content"] == []
    assert events[3]["part"]["text"] == ""
    assert [event["delta"] for event in events[4:6]] == ["Hel", "lo"]
    assert events[6]["text"] == events[7]["part"]["text"] == "Hello"
    assert events[8]["item"] == events[9]["response"]["output"][0]
    assert len({event["item_id"] for event in events[3:8]}) == 1


def test_the_events_of_reasoning_and_a_call_come_in_order() -> None:
    engine = answering("why", "</think>", WEATHER, tool_format="json_tools", **THINKING)

    events = streamed(engine, **TOOLS)

    first_delta = kinds(events).index("function_call_arguments.delta")
    last_delta = kinds(events).index("function_call_arguments.done")
    assert kinds(events)[:first_delta] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
    ]
    assert kinds(events)[last_delta:] == [
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    parts = [event["delta"] for event in events[first_delta:last_delta]]
    assert "".join(parts) == events[last_delta]["arguments"] == '{"a":1}'
    assert [event["output_index"] for event in events[2:-1]] == [0] * 6 + [1] * (len(events) - 9)


ALL_KINDS = f"think</think>ok {WEATHER}\n{WEATHER} so"
CUTS = [list(ALL_KINDS), *([ALL_KINDS[:at], ALL_KINDS[at:]] for at in range(1, len(ALL_KINDS)))]


@pytest.mark.parametrize("parts", CUTS, ids=len)
def test_however_the_text_is_cut_stream_and_whole_answer_are_the_same(parts: list[str]) -> None:
    fields = {"tool_format": "json_tools", **THINKING}

    response = whole(answering(*parts, **fields), **TOOLS)
    events = streamed(answering(*parts, **fields), **TOOLS)

    assert without_ids(events[-1]["response"]["output"]) == without_ids(response["output"])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    calls = [item for item in done if item["type"] == "function_call"]
    assert [json.loads(item["arguments"]) for item in calls] == [{"a": 1}] * 2


def test_an_answer_that_was_cut_is_incomplete() -> None:
    engine = FakeEngine([started(), *deltas("Hel", finish=FinishReason.LENGTH)])

    response = whole(engine)

    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None
    assert kinds(streamed(engine))[-1] == "incomplete"


def test_b088_reasoning_without_end_stays_reasoning() -> None:
    engine = FakeEngine([started(**THINKING), *deltas("hm", finish=FinishReason.LENGTH)])

    (item,) = whole(engine)["output"]

    assert (item["type"], item["status"]) == ("reasoning", "incomplete")


def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    reasoning, message = whole(answering("hm</think>", **THINKING))["output"]

    assert reasoning["type"] == "reasoning"
    assert message["content"][0]["text"] == ""


def test_b079_a_call_that_was_cut_looks_like_none_that_is_complete() -> None:
    text = '<tool_call>{"name":"f","arguments":{"text":"abc'
    script = [started(tool_format="json_tools"), *deltas(text, finish=FinishReason.LENGTH)]

    response = whole(FakeEngine(script), **TOOLS)
    events = streamed(FakeEngine(script), **TOOLS)

    assert response["status"] == "incomplete"
    assert without_ids(events[-1]["response"]["output"]) == without_ids(response["output"])
    for item in response["output"]:
        assert item["status"] == "incomplete" or item["type"] != "function_call"
    assert "abc" in json.dumps(response["output"])
    assert "function_call_arguments.done" not in kinds(events)


def test_b085_a_call_without_arguments_has_an_empty_object() -> None:
    engine = answering('<tool_call>{"name":"f"}</tool_call>', tool_format="json_tools")

    (item,) = whole(engine, **TOOLS)["output"]

    assert item["arguments"] == "{}"


def test_b083_ids_are_unique_within_and_across_responses() -> None:
    engine = answering(WEATHER, "\n", WEATHER, tool_format="json_tools")

    items = [item for _ in range(2) for item in whole(engine, **TOOLS)["output"]]

    assert len({item["id"] for item in items}) == len(items) == 4
    assert len({item["call_id"] for item in items}) == 4


LOGPROBS = [
    TokenLogprob(piece, piece.encode(), -0.5, (TokenLogprob("x", b"x", -1.0),))
    for piece in ("why", "</think>", "\n\n", "hé", "llo")
]


def test_b043_logprobs_are_those_of_the_message() -> None:
    texts = [token.token for token in LOGPROBS]
    script = [started(**THINKING), *deltas(*texts, logprobs=LOGPROBS)]
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}

    message = whole(FakeEngine(script), **fields)["output"][-1]
    events = streamed(FakeEngine(script), **fields)

    found = message["content"][0]["logprobs"]
    assert [entry["token"] for entry in found] == ["hé", "llo"]
    assert found[0]["bytes"] == list("hé".encode())
    assert found[0]["top_logprobs"] == [{"token": "x", "logprob": -1.0, "bytes": [120]}]
    in_deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert [entry for group in in_deltas for entry in group] == found
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == found


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (ContextLengthExceeded(100, 64), 400, "context_length_exceeded", "input"),
        (EngineOverloaded("Full."), 429, "engine_overloaded", None),
        (GenerationFailed("It broke."), 500, "generation_failed", None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_what_fails_before_the_first_byte_has_a_status(
    error: Exception, status: int, code: str, param: str | None, stream: bool
) -> None:
    answer = call(make_app(FakeEngine([error])), PATH, {"input": "hi", "stream": stream})

    assert (answer.status, answer.error["code"]) == (status, code)
    assert answer.error["param"] == param


async def read_on(request: Call) -> bytes:
    read = b""
    while piece := await request.piece():
        read += piece
    return read


def test_b018_a_failure_in_the_stream_is_its_last_event() -> None:
    async def work() -> bytes:
        gate = asyncio.Event()
        script = [started(), Delta(0, "a", 1), gate, RuntimeError("boom /Users/x")]
        request = Call(make_app(FakeEngine(script)), PATH, {"input": "hi", "stream": True})
        await request.head()
        read = b""
        while b'"a"' not in read:
            read += await request.piece()
        gate.set()
        return read + await read_on(request)

    *_, last = events_of(run(work()))

    check("ResponseStreamEvent", last)
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "server_error"
    assert "boom" not in json.dumps(last)
    (item,) = last["response"]["output"]
    assert (item["content"][0]["text"], item["status"]) == ("a", "incomplete")


def test_b011_a_prompt_refused_after_a_comment_is_an_error_event() -> None:
    async def work() -> bytes:
        gate = asyncio.Event()
        app = make_app(FakeEngine([gate, ContextLengthExceeded(100, 64)]), heartbeat_s=0.01)
        request = Call(app, PATH, {"input": "hi", "stream": True})
        await request.head()
        comment = await request.piece()
        assert comment.startswith(b": ")
        gate.set()
        return await read_on(request)

    (event,) = events_of(run(work()))

    check("ResponseStreamEvent", event)
    assert (event["type"], event["code"]) == ("error", "context_length_exceeded")
    assert event["param"] == "input"
    assert event["error"]["message"] == event["message"]


def test_b129_no_delta_is_too_long_for_a_router() -> None:
    text = 'é"\n\x01😀\u2028' * 20_000
    answer = call(make_app(answering(text)), PATH, {"input": "hi", "stream": True})

    lines = [line for line in answer.body.split(b"\n") if b".delta" in line]
    assert max(map(len, lines)) <= MAX_LINE_BYTES
    assert "".join(e["delta"] for e in events_of(answer.body) if "delta" in e) == text


def test_what_was_asked_is_repeated() -> None:
    schema = {"type": "object"}
    response = whole(
        answering("{}"),
        instructions="Be kind.",
        max_output_tokens=50,
        parallel_tool_calls=False,
        prompt_cache_key="k",
        safety_identifier="s",
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
        tool_choice={"type": "function", "name": "f"},
        top_logprobs=2,
        store=False,
        **TOOLS,
    )

    assert response["instructions"] == "Be kind."
    assert response["max_output_tokens"] == 50
    assert response["parallel_tool_calls"] is False
    assert (response["prompt_cache_key"], response["safety_identifier"]) == ("k", "s")
    assert response["reasoning"] == {"effort": "low", "summary": "auto"}
    assert response["text"]["format"] == {
        "type": "json_schema",
        "name": "n",
        "schema": schema,
        "strict": True,
    }
    assert response["tool_choice"] == {"type": "function", "name": "f"}
    assert response["tools"] == [TOOL]
    assert (response["top_logprobs"], response["store"]) == (2, False)


def test_invariant_whatever_was_returned_can_be_sent_back() -> None:
    engine = answering("why</think>so ", WEATHER, tool_format="json_tools", **THINKING)
    output = whole(engine, **TOOLS)["output"]
    result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "1"}

    response = whole(answering("fine"), input=[USER_HI, *output, result], **TOOLS)

    assert response["output"][0]["content"][0]["text"] == "fine"
    assert CALL["name"] == output[-1]["name"]
