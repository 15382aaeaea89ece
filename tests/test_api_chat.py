from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlx_server.api.chat_answer import delta_parts
from mlx_server.engine.sequence import FinishReason, TokenLogprob
from mlx_server.parsers.output import ReasoningDelta, ToolCallStart
from tests.asgi_client import Answer, call, make_app
from tests.fake_engine import MODEL, FakeEngine, answering, deltas, started

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "ping"}},
]
CALL = '<tool_call>{"name":"f","arguments":{"c":"Paris"}}</tool_call>'


def chat(engine: FakeEngine, **fields: Any) -> Answer:
    answer = call(make_app(engine), PATH, {**CHAT, **fields})
    assert answer.status == 200
    return answer


def stream(engine: FakeEngine, **fields: Any) -> Answer:
    return chat(engine, stream=True, **fields)


def chunk_deltas(answer: Answer, index: int = 0) -> list[dict[str, Any]]:
    return [c["delta"] for chunk in answer.chunks for c in chunk["choices"] if c["index"] == index]


def content(answer: Answer, index: int = 0) -> str:
    return "".join(delta.get("content") or "" for delta in chunk_deltas(answer, index))


def finish_reasons(answer: Answer, index: int = 0) -> list[str]:
    choices = [c for chunk in answer.chunks for c in chunk["choices"] if c["index"] == index]
    return [c["finish_reason"] for c in choices if c["finish_reason"] is not None]


def calling(*texts: str, finish: FinishReason = FinishReason.STOP) -> FakeEngine:
    return FakeEngine([started(tool_format="json_tools"), *deltas(*texts, finish=finish)])


def test_answer_has_text_usage_and_identity() -> None:
    answer = chat(answering("Hel", "lo"))

    body = answer.json
    assert answer.headers["content-type"] == "application/json"
    assert re.fullmatch("chatcmpl-[0-9a-f]{32}", body["id"])
    assert type(body["created"]) is int
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


def test_b068_usage_counts_are_integers_under_the_names_of_the_chat_api() -> None:
    usage = chat(answering("a", "b")).json["usage"]

    assert usage == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
    }


def test_b059_stream_ends_with_one_finish_reason_and_done() -> None:
    answer = stream(answering("a", "b"))

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert content(answer) == "ab"
    assert finish_reasons(answer) == ["stop"]
    assert answer.chunks[-1]["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert answer.body.count(b"[DONE]") == 1


@pytest.mark.parametrize("texts", [("text",), (CALL,), ("",)])
def test_b058_role_comes_first_and_never_again(texts: tuple[str, ...]) -> None:
    first, *rest = chunk_deltas(stream(calling(*texts), tools=TOOLS))

    assert first == {"role": "assistant", "content": ""}
    assert rest
    assert not any("role" in delta for delta in rest)


def test_b010_all_frames_share_one_identity() -> None:
    answer = stream(answering("a", "b"), stream_options={"include_usage": True})

    keys = ("id", "object", "created", "model", "system_fingerprint")
    identities = {tuple(chunk[key] for key in keys) for chunk in answer.chunks}
    assert len(identities) == 1
    assert identities.pop()[1] == "chat.completion.chunk"


def test_b063_usage_chunk_has_the_numbers_of_the_whole_answer() -> None:
    engine = answering("a", "b")

    *others, last = stream(engine, stream_options={"include_usage": True}).chunks

    assert last["choices"] == []
    assert last["usage"] == chat(engine).json["usage"]
    assert all(chunk["usage"] is None for chunk in others)


def test_usage_is_left_out_of_streams_that_do_not_ask() -> None:
    answer = stream(answering("a"), stream_options={"include_usage": False})

    assert not any("usage" in chunk for chunk in answer.chunks)
    assert all(chunk["choices"] for chunk in answer.chunks)


def test_usage_chunk_can_be_sent_always() -> None:
    app = make_app(answering("a"), always_include_usage=True)

    *others, last = call(app, PATH, {**CHAT, "stream": True}).chunks

    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 8
    assert not any("usage" in chunk for chunk in others)


def test_b047_n_choices_have_their_own_text_end_and_summed_usage() -> None:
    script = [
        started(),
        *deltas("a", "a"),
        *deltas("b", index=2, finish=FinishReason.LENGTH),
        *deltas("c", index=1),
    ]

    whole = chat(FakeEngine(script), n=3).json
    streamed = stream(FakeEngine(script), n=3, stream_options={"include_usage": True})

    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert texts == ["aa", "c", "b"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "stop", "length"]
    assert whole["usage"]["prompt_tokens"] == 7
    assert whole["usage"]["completion_tokens"] == 4
    assert [content(streamed, index) for index in range(3)] == texts
    assert [finish_reasons(streamed, index) for index in range(3)] == [
        ["stop"],
        ["stop"],
        ["length"],
    ]
    assert all(chunk_deltas(streamed, index)[0]["role"] == "assistant" for index in range(3))
    assert streamed.chunks[-1]["usage"] == whole["usage"]


def test_content_is_a_string_when_there_is_no_tool_call() -> None:
    assert chat(answering("")).json["choices"][0]["message"]["content"] == ""


def test_b061_tool_call_ends_with_tool_calls_and_content_null() -> None:
    choice = chat(calling(CALL), tools=TOOLS).json["choices"][0]

    (tool_call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert tool_call["type"] == "function"
    assert tool_call["function"]["name"] == "f"
    assert json.loads(tool_call["function"]["arguments"]) == {"c": "Paris"}


def test_b061_declared_tools_without_a_call_end_with_stop() -> None:
    engine = calling("just text")

    assert chat(engine, tools=TOOLS).json["choices"][0]["finish_reason"] == "stop"
    assert finish_reasons(stream(engine, tools=TOOLS)) == ["stop"]


def test_text_beside_a_tool_call_stays_content() -> None:
    message = chat(calling("I look. ", CALL), tools=TOOLS).json["choices"][0]["message"]

    assert message["content"].strip() == "I look."
    assert len(message["tool_calls"]) == 1


def test_b083_streamed_calls_begin_with_their_identity_and_are_unique() -> None:
    engine = calling(CALL, '<tool_call>{"name":"ping"}</tool_call>')

    answers = [stream(engine, tools=TOOLS) for _ in range(2)]

    ids = []
    for answer in answers:
        parts = [part for d in chunk_deltas(answer) for part in d.get("tool_calls", [])]
        starts = [part for part in parts if "id" in part]
        assert [start["index"] for start in starts] == [0, 1]
        assert [start["function"] for start in starts] == [
            {"name": "f", "arguments": ""},
            {"name": "ping", "arguments": ""},
        ]
        assert all(start["type"] == "function" for start in starts)
        assert joined_arguments(parts) == [{"c": "Paris"}, {}]
        assert finish_reasons(answer) == ["tool_calls"]
        ids += [start["id"] for start in starts]
    assert all(ids)
    assert len(set(ids)) == 4


def joined_arguments(parts: list[dict[str, Any]]) -> list[Any]:
    texts: dict[int, str] = {}
    for part in parts:
        texts[part["index"]] = texts.get(part["index"], "") + part["function"]["arguments"]
    return [json.loads(text) for _, text in sorted(texts.items())]


def test_b079_a_call_cut_by_the_limit_ends_with_length() -> None:
    engine = calling(CALL[:40], finish=FinishReason.LENGTH)

    choice = chat(engine, tools=TOOLS).json["choices"][0]

    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]
    assert finish_reasons(stream(engine, tools=TOOLS)) == ["length"]


def test_the_limit_is_reported_even_after_a_complete_call() -> None:
    engine = calling(CALL, " and", finish=FinishReason.LENGTH)

    choice = chat(engine, tools=TOOLS).json["choices"][0]

    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["finish_reason"] == "length"
    assert finish_reasons(stream(engine, tools=TOOLS)) == ["length"]


def test_long_thoughts_and_names_are_cut_into_pieces() -> None:
    thought = [json.loads(part) for part in delta_parts(ReasoningDelta("é" * 10_000))]
    start = [
        json.loads(part)["tool_calls"][0] for part in delta_parts(ToolCallStart(1, "c", "n" * 7000))
    ]

    assert len(thought) == 7
    for name in ("reasoning_content", "reasoning"):
        assert "".join(part[name] for part in thought) == "é" * 10_000
    assert "".join(part["function"]["name"] for part in start) == "n" * 7000
    assert [part.get("id") for part in start] == ["c", None, None]
    assert {part["index"] for part in start} == {1}
    assert len(list(delta_parts(ToolCallStart(0, "c", "")))) == 1


def test_b050_without_a_choice_of_tools_there_are_no_calls_and_no_tools_in_the_prompt() -> None:
    engine = calling(CALL)

    choice = chat(engine, tools=TOOLS, tool_choice="none").json["choices"][0]

    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert engine.requests[0].prompt.tools == ()  # type: ignore[union-attr]


def test_an_answer_that_was_cut_is_never_reported_as_stop() -> None:
    engine = FakeEngine([started(), *deltas("a", finish=FinishReason.LENGTH)])

    assert chat(engine).json["choices"][0]["finish_reason"] == "length"


def entry(token: str, logprob: float = -0.25) -> TokenLogprob:
    return TokenLogprob(token, token.encode(), logprob, (TokenLogprob("x", b"x", float("-inf")),))


def test_b043_logprobs_have_one_entry_for_each_token() -> None:
    engine = FakeEngine([started(), *deltas("é", "b", logprobs=[entry("é"), entry("b")])])

    logprobs = chat(engine, logprobs=True, top_logprobs=1).json["choices"][0]["logprobs"]

    assert engine.requests[0].top_logprobs == 1
    assert [item["token"] for item in logprobs["content"]] == ["é", "b"]
    assert logprobs["content"][0] == {
        "token": "é",
        "logprob": -0.25,
        "bytes": [195, 169],
        "top_logprobs": [{"token": "x", "logprob": -9999.0, "bytes": [120]}],
    }


def test_b044_streamed_logprobs_add_up_to_the_whole_ones() -> None:
    many = [entry(token) for token in "abc"]
    steps = deltas("a", "", "bc", logprobs=many)
    engine = FakeEngine([started(), *steps])

    whole = chat(engine, logprobs=True).json["choices"][0]["logprobs"]["content"]
    streamed = stream(engine, logprobs=True)

    parts = [chunk["choices"][0]["logprobs"] for chunk in streamed.chunks]
    assert len(whole) == 3
    assert [item for part in parts if part for item in part["content"]] == whole
    assert content(streamed) == "abc"


def test_b124_streams_do_not_share_a_parser() -> None:
    both = FakeEngine(
        [
            started(tool_format="json_tools"),
            *deltas(CALL[:20], CALL[20:])[:1],
            *deltas("pl", "ain", index=1),
            *deltas(CALL[:20], CALL[20:])[1:],
        ]
    )

    first, second = chat(both, n=2, tools=TOOLS).json["choices"]

    assert first["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert second["message"]["content"] == "plain"


def test_paths_without_the_version_are_served() -> None:
    answer = call(make_app(answering("a")), "/chat/completions", CHAT)

    assert answer.json["choices"][0]["message"]["content"] == "a"


def test_the_channel_test_of_a_router_passes() -> None:
    body = {
        "messages": [{"role": "user", "content": "Output only your specific model name."}],
        "model": "fake",
    }

    answer = call(make_app(answering("fake")), PATH, body)

    assert answer.status == 200
    assert isinstance(answer.json["choices"][0]["message"]["content"], str)
    assert isinstance(answer.json["created"], int)
