"""What a message is made of, whole and as events; both say the same."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from mlx_server.api.messages_answer import MessageReader
from mlx_server.api.messages_blocks import BlockEvents, WholeBlocks
from mlx_server.engine.sequence import Delta, FinishReason, Progress
from mlx_server.errors import GenerationFailed
from mlx_server.parsers.deltas import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from tests.asgi_client import Answer, Call, make_app, run
from tests.fake_engine import FakeEngine, answering, deltas, started
from tests.messages_requests import (
    CALL,
    PATH,
    TOOL,
    Body,
    asked,
    body,
    events,
    joined,
    message,
    stream,
)

SOON = 0.01
HELLO: list[OutputDelta] = [ContentDelta("Hel"), ContentDelta("lo")]
CALLED: list[OutputDelta] = [
    ToolCallStart(0, "call_1", "look"),
    ToolCallArguments(0, '{"place":'),
    ToolCallArguments(0, '"here"}'),
]


def read(*parts: OutputDelta, **options: Any) -> list[Body]:
    """The blocks of an answer, which must be the same from its events and as a whole."""
    blocks = BlockEvents(**options)
    found = [dict(event) for part in parts for event in blocks.add(part)]
    found += map(dict, blocks.finish())
    whole = WholeBlocks()
    whole.add(found)
    assert joined(found) == whole.blocks()
    return joined(found)


def test_text_is_one_block() -> None:
    assert read(*HELLO) == [{"type": "text", "text": "Hello"}]


def test_thoughts_text_and_calls_are_blocks_in_their_order() -> None:
    assert read(ReasoningDelta("hm"), *HELLO, *CALLED, ContentDelta("done")) == [
        {"type": "thinking", "thinking": "hm", "signature": "mlx_server"},
        {"type": "text", "text": "Hello"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"place": "here"}},
        {"type": "text", "text": "done"},
    ]


def test_b077_calls_are_blocks_of_their_own() -> None:
    second = [ToolCallStart(1, "call_2", "look"), ToolCallArguments(1, "{}")]
    first, other = read(*CALLED, *second)
    assert (first["id"], other["id"]) == ("toolu_1", "toolu_2")
    assert (first["input"], other["input"]) == ({"place": "here"}, {})


def test_white_space_alone_is_no_block_and_stays_before_text() -> None:
    assert read(ContentDelta("\n"), ContentDelta("\n"), *CALLED, ContentDelta(" ")) == read(*CALLED)
    assert read(ContentDelta("\n"), ContentDelta(" a")) == [{"type": "text", "text": "\n a"}]
    assert read(ContentDelta("\n"), ReasoningDelta("hm"))[0]["thinking"] == "hm"
    assert read() == []


def test_thoughts_that_are_not_to_be_shown_leave_their_block() -> None:
    assert read(ReasoningDelta("hm"), *HELLO, shows_thinking=False) == [
        {"type": "thinking", "thinking": "", "signature": "mlx_server"},
        {"type": "text", "text": "Hello"},
    ]


def test_b079_a_call_that_broke_off_is_no_block_of_the_whole() -> None:
    blocks = BlockEvents()
    whole = WholeBlocks()
    for part in (*CALLED[:2], ContentDelta("<tool_call>")):
        whole.add(blocks.add(part))
    whole.add(blocks.finish())
    assert whole.blocks() == [{"type": "text", "text": "<tool_call>"}]


def test_a_whole_message() -> None:
    found = message(answering("Hel", "lo"))
    assert found.pop("id").startswith("msg_")
    assert found == {
        "type": "message",
        "role": "assistant",
        "model": "org/fake",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 2,
            "service_tier": "standard",
        },
    }


def test_the_events_of_a_stream() -> None:
    first, *found = stream(answering("Hel", "lo"))
    empty = first["message"]
    assert empty.pop("id").startswith("msg_")
    assert empty == {
        "type": "message",
        "role": "assistant",
        "model": "org/fake",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 0,
            "service_tier": "standard",
        },
    }
    delta = {"type": "content_block_delta", "index": 0}
    assert found == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {**delta, "delta": {"type": "text_delta", "text": "Hel"}},
        {**delta, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {
                "input_tokens": 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 3,
                "output_tokens": 2,
            },
        },
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("script", "reason", "stop"),
    [
        (deltas("a"), "end_turn", None),
        (deltas("a", finish=FinishReason.LENGTH), "max_tokens", None),
        ([Delta(0, "a", 1, finish_reason=FinishReason.STOP, stop="END")], "stop_sequence", "END"),
        (deltas(CALL), "tool_use", None),
        ([Delta(0, CALL, 1, finish_reason=FinishReason.STOP, stop="END")], "tool_use", None),
        (deltas(CALL, finish=FinishReason.LENGTH), "max_tokens", None),
        (deltas(CALL[:30], finish=FinishReason.LENGTH), "max_tokens", None),
    ],
    ids=["end", "limit", "stop string", "call", "call and stop string", "limit at call", "broken"],
)
def test_b059_b061_why_it_ended(script: list[Delta], reason: str, stop: str | None) -> None:
    def engine() -> FakeEngine:
        return FakeEngine([started(tool_format="json_tools"), *script])

    whole = message(engine(), tools=[TOOL])
    ends = [event for event in stream(engine(), tools=[TOOL]) if event["type"] == "message_delta"]

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, stop)
    assert [end["delta"] for end in ends] == [{"stop_reason": reason, "stop_sequence": stop}]


def test_b071_b083_a_call_is_streamed_as_the_json_of_its_input() -> None:
    text = "I look. " + CALL
    cut = [text[at : at + 3] for at in range(0, len(text), 3)]

    def engine() -> FakeEngine:
        return FakeEngine([started(tool_format="json_tools"), *deltas(*cut)])

    found = stream(engine(), tools=[TOOL])
    words, call = joined(found)
    whole = message(engine(), tools=[TOOL])["content"]

    assert words["text"].strip() == "I look."
    assert call["id"].startswith("toolu_")
    assert call["input"] == {"place": "here"}
    assert [{**block, "id": ""} for block in whole] == [{**words, "id": ""}, {**call, "id": ""}]
    starts = [event for event in found if event["type"] == "content_block_start"]
    assert starts[-1]["content_block"]["input"] == {}


def test_b081_b086_the_blocks_are_the_same_for_every_cut() -> None:
    text = f"hm</think>\n\nI look. {CALL}\n{CALL}"
    request = asked(tools=[TOOL])
    start = started(tool_format="json_tools", reasoning_format="think", is_reasoning=True)

    def blocks(*pieces: str) -> list[Body]:
        reader = MessageReader(start, request, shows_thinking=True)
        found = [dict(event) for delta in deltas(*pieces) for event in reader.read(delta)]
        assert reader.stop_reason == "tool_use"
        return [{**block, "id": ""} for block in joined(found)]

    call = {"type": "tool_use", "id": "", "name": "look", "input": {"place": "here"}}
    whole = blocks(text)
    assert [block["type"] for block in whole] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole[0]["thinking"] == "hm"
    assert whole[2:] == [call, call]
    for at in range(len(text)):
        assert blocks(text[:at], text[at:]) == whole
    assert blocks(*text) == whole


def test_b011_a_wait_is_kept_alive_by_comments_and_then_by_pings() -> None:
    async def work() -> tuple[bytes, bytes, bytes]:
        first, second = asyncio.Event(), asyncio.Event()
        script = [Progress("prefill", 1, 2), first, started(), second, *deltas("a")]
        request = Call(make_app(FakeEngine(script), heartbeat_s=SOON), PATH, body(stream=True))
        await request.head()
        before = await request.piece()
        first.set()
        start = await request.piece()
        while start.startswith(b": "):
            start = await request.piece()
        ping = await request.piece()
        second.set()
        rest = b""
        while piece := await request.piece():
            rest += piece
        return before, ping, start + rest

    before, ping, rest = run(work())

    assert before == b": prefill 1/2\n\n"
    assert ping == b'event: ping\ndata: {"type":"ping"}\n\n'
    found = [event for event in events(rest) if event["type"] != "ping"]
    assert found[0]["type"] == "message_start"
    assert joined(found) == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize("error", [GenerationFailed("It broke."), RuntimeError("boom /Users/x")])
def test_b018_a_failure_in_the_stream_is_an_error_event(error: Exception) -> None:
    async def work() -> Answer:
        gate = asyncio.Event()
        script = [started(), Delta(0, "a", 1), gate, error]
        request = Call(make_app(FakeEngine(script)), PATH, body(stream=True))
        status, headers = await request.head()
        content = await request.piece()
        gate.set()
        while piece := await request.piece():
            content += piece
        return Answer(status, headers, content)

    answer = run(work())

    *before, last = events(answer.body)
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "message_delta" not in {event["type"] for event in before}
    assert b"boom" not in answer.body


def test_text_of_any_length_and_kind_comes_through() -> None:
    words = 'é"\n\x01😀\u2028' * 20_000
    (block,) = joined(stream(answering(words)))
    assert block["text"] == words
    assert message(answering(words))["content"] == [block]
    assert json.dumps(block)
