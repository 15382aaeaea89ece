"""Reported faults of servers like this one, replayed through the whole server: what is sent out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted import Script
from tests.scripted_server import Served, scripted_server

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name":"f","arguments":{"obj":{"db":"x","tags":["a","b"]},"n":1}}</tool_call>'


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, m=script) as served:
        yield served


def cuts(text: str) -> list[list[str]]:
    """Every way to cut the text in two, and the text as single characters."""
    return [[text[:i], text[i:]] for i in range(1, len(text))] + [list(text)]


@pytest.mark.parametrize("stop", ["STOP", ["STOP"]], ids=["string", "list"])
def test_b052_stop_may_be_a_string_or_a_list(served: Served, script: Script, stop: object) -> None:
    script.say("alpha", " STOP", " omega")
    choice = served.chat(stop=stop)["choices"][0]
    assert choice["message"]["content"] == "alpha "
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", [[], "", None, [""]], ids=["none", "empty", "null", "listed"])
def test_b052_empty_stops_do_not_stop(served: Served, script: Script, stop: object) -> None:
    script.say("alpha", " STOP", " omega")
    assert served.chat(stop=stop)["choices"][0]["message"]["content"] == "alpha STOP omega"


def test_b053_stop_string_is_found_however_the_text_is_cut(served: Served, script: Script) -> None:
    variants = cuts("ok\nUser: hi more")
    for pieces in variants:
        script.say(*pieces)
    for _ in variants:
        stream = served.stream(stop=["\nUser:"])
        assert stream.content == "ok"
        assert stream.finish_reasons == ["stop"]


def test_b053_generation_ends_at_the_stop_string(served: Served, script: Script) -> None:
    script.say("ok", "\n", "Us", "er", ": hi", *[" more"] * 50)
    served.chat(stop=["\nUser:"])
    # the batch runs one step ahead of the token that it returns
    assert script.num_tokens <= 6


def test_b059_stream_ends_with_one_finish_reason_and_one_done(
    served: Served, script: Script
) -> None:
    script.say("a", "b")
    stream = served.stream()
    assert stream.is_done
    assert stream.content == "ab"
    assert stream.finish_reasons == ["stop"]
    assert stream.frames[-1]["choices"][0]["finish_reason"] == "stop"


def test_b061_finish_reason_tells_a_call_from_text(served: Served, script: Script) -> None:
    script.say(CALL)
    script.say(CALL)
    script.say("no call")
    assert served.chat(tools=[TOOL])["choices"][0]["finish_reason"] == "tool_calls"
    assert served.stream(tools=[TOOL]).finish_reasons == ["tool_calls"]
    assert served.chat(tools=[TOOL])["choices"][0]["finish_reason"] == "stop"


def test_b063_usage_chunk_has_no_choices_and_the_same_numbers(
    served: Served, script: Script
) -> None:
    script.say("a", "b")
    whole = served.chat()["usage"]
    stream = served.stream(stream_options={"include_usage": True})
    assert stream.frames[-1]["choices"] == []
    assert all(frame["usage"] is None for frame in stream.frames[:-1])
    assert stream.usage is not None
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [stream.usage[c] for c in counts] == [whole[c] for c in counts]
    assert whole["prompt_tokens"] + whole["completion_tokens"] == whole["total_tokens"]


def test_b071_nested_arguments_survive_every_cut(served: Served, script: Script) -> None:
    variants = cuts(CALL)
    for pieces in variants:
        script.say(*pieces)
    for _ in variants:
        stream = served.stream(tools=[TOOL])
        (call,) = stream.tool_calls.values()
        assert json.loads(call["arguments"]) == {"obj": {"db": "x", "tags": ["a", "b"]}, "n": 1}
        assert stream.content == ""


def test_b077_two_calls_stay_two(served: Served, script: Script) -> None:
    script.say(
        '<tool_call>{"name":"f","arguments":{"c":"Paris"}}</tool_call>\n',
        '<tool_call>{"name":"f","arguments":{"c":"Tokyo"}}</tool_call>',
    )
    calls = served.chat(tools=[TOOL])["choices"][0]["message"]["tool_calls"]
    cities = [json.loads(call["function"]["arguments"])["c"] for call in calls]
    assert cities == ["Paris", "Tokyo"]
    assert len({call["id"] for call in calls}) == 2


def test_b079_call_cut_by_the_limit_is_no_call_and_is_not_lost(
    served: Served, script: Script
) -> None:
    script.say(*'<tool_call>{"name":"f","arguments":{"text":"abc', *"def" * 30)
    asked = {"tools": [TOOL], "max_tokens": 48}
    choice = served.chat(**asked)["choices"][0]
    stream = served.stream(**asked)
    assert choice["finish_reason"] == "length"
    assert stream.finish_reasons == ["length"]
    assert "tool_calls" not in choice["message"]
    assert '"text":"abc' in choice["message"]["content"]
    assert stream.content == choice["message"]["content"]
    for call in stream.tool_calls.values():
        with pytest.raises(json.JSONDecodeError):
            json.loads(call["arguments"])


def test_b081_markers_cut_anywhere_never_reach_the_content(served: Served, script: Script) -> None:
    variants = cuts('Let me look. <tool_call>{"name":"f","arguments":{}}</tool_call>')
    for pieces in variants:
        script.say(*pieces)
    for _ in variants:
        stream = served.stream(tools=[TOOL])
        assert stream.content.rstrip() == "Let me look."
        assert [call["arguments"] for call in stream.tool_calls.values()] == ["{}"]


def test_b081_half_a_marker_is_text(served: Served, script: Script) -> None:
    script.say(*"a <tool_cal b")
    assert served.stream(tools=[TOOL]).content == "a <tool_cal b"


def test_b083_each_call_is_introduced_once_with_an_id_of_its_own(
    served: Served, script: Script
) -> None:
    script.say(CALL + CALL)
    script.say(CALL + CALL)
    ids = []
    for _ in range(2):
        stream = served.stream(tools=[TOOL])
        assert sorted(stream.tool_calls) == [0, 1]
        for call in stream.tool_calls.values():
            assert call["type"] == "function"
            assert call["name"] == "f"
            ids.append(call["id"])
    assert len(set(ids)) == 4


def test_b096_characters_of_many_tokens_come_whole(served: Served, script: Script) -> None:
    text = "hi😀é漢"
    script.say_bytes(text)
    stream = served.stream()
    assert stream.content == text
    deltas = [f["choices"][0]["delta"].get("content") for f in stream.frames]
    assert [d for d in deltas if d] == ["h", "i", "😀", "é", "漢"]
    assert served.chat()["choices"][0]["message"]["content"] == text


def test_b050_without_a_choice_there_are_no_calls(served: Served, script: Script) -> None:
    script.say(CALL)
    choice = served.chat(tools=[TOOL], tool_choice="none")["choices"][0]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


def test_b056_the_tokenizer_s_own_end_token_ends_the_answer(served: Served, script: Script) -> None:
    script.say("hi", "<|im_end|>", "junk")
    choice = served.chat()["choices"][0]
    assert choice["message"]["content"] == "hi"
    assert choice["finish_reason"] == "stop"


def test_b042_without_a_limit_the_answer_ends_where_the_model_ends_it(
    served: Served, script: Script
) -> None:
    script.say(*["word "] * 2000)
    body = served.chat()
    assert body["choices"][0]["message"]["content"] == "word " * 2000
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 2001


def test_b040_the_newer_name_of_the_limit_wins(served: Served, script: Script) -> None:
    script.say(*["x"] * 50)
    for asked in (
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"max_completion_tokens": 5, "max_tokens": 9},
    ):
        body = served.chat(**asked)
        assert body["usage"]["completion_tokens"] == 5
        assert body["choices"][0]["finish_reason"] == "length"


def test_b041_a_huge_limit_is_bounded_by_the_context(served: Served, script: Script) -> None:
    script.say("short")
    assert served.chat(max_tokens=100_000_000)["choices"][0]["finish_reason"] == "stop"


def test_b065_text_flows_while_tools_are_declared(served: Served, script: Script) -> None:
    script.say("a", " < b", " and", " c")
    stream = served.stream(tools=[TOOL])
    assert stream.content == "a < b and c"
    deltas = [f["choices"][0]["delta"].get("content") for f in stream.frames]
    assert len([d for d in deltas if d]) >= 3


def test_b129_no_line_of_a_stream_is_too_long_for_a_router(served: Served, script: Script) -> None:
    long_text = "é" * 200_000
    script.say(f'<tool_call>{{"name":"f","arguments":{{"text":"{long_text}"}}}}</tool_call>')
    answer = served.client.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [TOOL],
            "stream": True,
        },
    )
    assert max(map(len, answer.content.split(b"\n"))) < 32 * 1024
    call = served.stream(tools=[TOOL]).tool_calls[0]
    assert json.loads(call["arguments"])["text"] == long_text
