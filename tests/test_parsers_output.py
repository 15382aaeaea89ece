from __future__ import annotations

from typing import Any

import pytest

from mlx_server.parsers.output import ContentDelta, OutputParser, ToolCallStart
from tests.parser_cuts import deltas, tool

TOOLS = (tool("f", "a"),)
CALL = '<tool_call>{"name":"f","arguments":{}}</tool_call>'


def started_calls(text: str) -> list[ToolCallStart]:
    return [d for d in deltas([text], TOOLS, "json_tools") if isinstance(d, ToolCallStart)]


@pytest.mark.parametrize(
    ("tool_format", "tools"),
    [(None, TOOLS), ("json_tools", ()), (None, ())],
    ids=["no format", "no tools", "neither"],
)
def test_b050_without_tools_or_format_a_call_is_text(tool_format: str, tools: Any) -> None:
    parser = OutputParser(tool_format, tools)
    assert parser.feed(CALL) == [ContentDelta(CALL)]
    assert parser.feed("") == []
    assert parser.finish() == []
    assert parser.num_tool_calls == 0


def test_b065_plain_text_flows_at_once() -> None:
    parser = OutputParser("json_tools", TOOLS)
    pieces = ["a", " < b", " and", " c", " </tool", " <b>"]
    assert [parser.feed(piece) for piece in pieces] == [[ContentDelta(p)] for p in pieces]


def test_only_a_true_prefix_of_the_marker_is_held_back() -> None:
    parser = OutputParser("json_tools", TOOLS)
    assert parser.feed("x <tool_ca") == [ContentDelta("x ")]
    assert parser.feed("b <") == [ContentDelta("<tool_cab ")]
    assert parser.finish() == [ContentDelta("<")]


def test_white_space_of_plain_text_is_not_held_back() -> None:
    parser = OutputParser("json_tools", TOOLS)
    assert parser.feed("\n\n") == [ContentDelta("\n\n")]
    assert parser.feed("a ") == [ContentDelta("a ")]


def test_white_space_between_and_behind_calls_is_no_content() -> None:
    found = deltas([f"{CALL}\n{CALL}\n"], TOOLS, "json_tools")
    assert not [delta for delta in found if isinstance(delta, ContentDelta)]


def test_white_space_before_text_behind_a_call_stays() -> None:
    found = deltas([CALL, "\n", " so ", "\n", CALL], TOOLS, "json_tools")
    content = [delta for delta in found if isinstance(delta, ContentDelta)]
    assert content == [ContentDelta("\n so "), ContentDelta("\n")]


def test_b083_calls_have_indexes_and_ids_of_their_own_within_and_across_answers() -> None:
    calls = started_calls(CALL + CALL) + started_calls(CALL + CALL)
    assert [call.index for call in calls] == [0, 1, 0, 1]
    assert len({call.id for call in calls}) == 4
    for call in calls:
        prefix, _, digits = call.id.partition("_")
        assert prefix == "call" and len(digits) == 24 and int(digits, 16) >= 0


def test_calls_are_counted_once_complete() -> None:
    parser = OutputParser("json_tools", TOOLS)
    parser.feed(CALL[:-1])
    assert parser.num_tool_calls == 0
    parser.feed(CALL[-1])
    assert parser.num_tool_calls == 1
    parser.feed("<tool_call>{")
    parser.finish()
    assert parser.num_tool_calls == 1
