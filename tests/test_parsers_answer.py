from __future__ import annotations

from mlx_server.parsers.answer import Answer, FinishedCall
from mlx_server.parsers.output import (
    ContentDelta,
    OutputDelta,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)


def answer(*deltas: OutputDelta) -> Answer:
    collected = Answer()
    for delta in deltas:
        collected.add([delta])
    collected.finish()
    return collected


def test_nothing_said_is_none() -> None:
    empty = answer()
    assert (empty.content, empty.reasoning, empty.tool_calls) == (None, None, ())


def test_pieces_join_by_kind_and_call() -> None:
    collected = answer(
        ReasoningDelta("th"),
        ContentDelta("a"),
        ToolCallStart(0, "call_0", "f"),
        ReasoningDelta("ink"),
        ToolCallArguments(0, '{"x"'),
        ToolCallStart(1, "call_1", "g"),
        ToolCallArguments(1, "{}"),
        ToolCallArguments(0, ":1}"),
        ContentDelta("b"),
    )
    assert collected.content == "ab"
    assert collected.reasoning == "think"
    assert collected.tool_calls == (
        FinishedCall("call_0", "f", '{"x":1}'),
        FinishedCall("call_1", "g", "{}"),
    )


def test_b079_calls_that_broke_off_are_left_out() -> None:
    collected = answer(
        ToolCallStart(0, "call_0", "f"),
        ToolCallArguments(0, '{"x":'),
        ToolCallStart(1, "call_1", "g"),
        ToolCallStart(2, "call_2", "h"),
        ToolCallArguments(2, "{}"),
    )
    assert collected.tool_calls == (FinishedCall("call_2", "h", "{}"),)
