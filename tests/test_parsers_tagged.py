"""What every tool format in tags has in common."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlx_server.parsers.output import (
    ContentDelta,
    OutputParser,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.parsers.tools import TOOL_FORMATS
from mlx_server.parsers.tools.call import MalformedCall
from tests.parser_cuts import Result, arguments_of, read_every_way
from tests.parser_cuts import read as read_pieces
from tests.tagged_calls import ARGUMENTS, CALLS, EMPTY, NAMES, TOOLS, in_one_block

every_format = pytest.mark.parametrize("name", NAMES)


def read(name: str, text: str) -> Result:
    return read_every_way(text, TOOLS, name)


def values(result: Result) -> list[tuple[str, Any]]:
    return [(name, json.loads(arguments)) for name, arguments in result.calls]


@every_format
def test_a_call_is_read_with_the_types_of_its_schema(name: str) -> None:
    result = read(name, CALLS[name])
    assert (values(result), result.content) == ([("plan-trip", ARGUMENTS)], "")


@every_format
def test_b085_a_call_without_arguments_has_an_empty_object(name: str) -> None:
    assert read(name, EMPTY[name]) == Result("", (("now", "{}"),), (("now", "{}"),))


@every_format
def test_b077_several_calls_stay_apart_and_in_order(name: str) -> None:
    for text in (in_one_block(name), CALLS[name] + EMPTY[name]):
        result = read(name, text)
        assert values(result) == [("plan-trip", ARGUMENTS), ("now", {})]
        assert result.content == ""


@every_format
def test_b081_text_around_a_call_is_content(name: str) -> None:
    result = read(name, f"Let me look. {EMPTY[name]} Done <b")
    assert (values(result), result.content) == ([("now", {})], "Let me look.  Done <b")


@every_format
def test_b081_a_begun_marker_alone_is_content(name: str) -> None:
    text = f"a {TOOL_FORMATS[name].tool_call_start[:-1]} b"
    assert read(name, text) == Result(text, (), ())


@every_format
def test_b079_a_call_that_breaks_off_is_content(name: str) -> None:
    text = CALLS[name]
    end = text.index("New") + 3
    result = read_every_way(text[:end], TOOLS, name)
    assert (result.calls, result.content) == ((), text[:end])
    ((called, arguments),) = result.streamed
    assert (called, arguments) == ("plan-trip", '{"city": "New')


@every_format
def test_wherever_a_call_breaks_off_its_text_is_not_lost(name: str) -> None:
    text = CALLS[name]
    for end in range(1, len(text)):
        result = read_pieces([text[:end]], TOOLS, name)
        if result.calls:
            assert (values(result), result.content) == ([("plan-trip", ARGUMENTS)], "")
        else:
            assert result.content == text[:end]


@every_format
def test_the_complete_calls_of_a_block_that_breaks_off_stand(name: str) -> None:
    both = in_one_block(name)
    result = read(name, both[: both.index("now") - 2])
    assert values(result) == [("plan-trip", ARGUMENTS)]
    assert result.content in both


@every_format
def test_a_block_that_is_no_call_is_content_verbatim(name: str) -> None:
    form = TOOL_FORMATS[name]
    for inside in ("", " ", "no call here, {sorry}", "<b>", '{"name": "f", "arguments": {}}'):
        text = f"x {form.tool_call_start}{inside}{form.tool_call_end} y"
        assert read(name, text) == Result(text, (), ())


@every_format
def test_a_block_begun_in_vain_does_not_hide_the_call_behind_it(name: str) -> None:
    start = TOOL_FORMATS[name].tool_call_start
    result = read(name, f"{start} <b> {EMPTY[name]}")
    assert (values(result), result.content) == ([("now", {})], f"{start} <b> ")
    result = read(name, f"{start}{EMPTY[name]}")
    assert (values(result), result.content) == ([("now", {})], start)


@pytest.mark.parametrize("name", sorted({*NAMES} - {"glm4_moe", "longcat"}))
def test_text_behind_a_complete_call_in_its_block_does_not_undo_it(name: str) -> None:
    form = TOOL_FORMATS[name]
    call = EMPTY[name] if name == "minicpm5" else EMPTY[name].removesuffix(form.tool_call_end)
    result = read(name, f"{call} so it is")
    assert (values(result), result.content.strip()) == ([("now", {})], "so it is")


@every_format
def test_a_tool_that_was_not_declared_is_called_all_the_same(name: str) -> None:
    text = CALLS[name].replace("plan-trip", "other.tool:x")
    ((called, arguments),) = values(read(name, text))
    assert called == "other.tool:x"
    assert {k: arguments[k] for k in ("city", "days", "by_train")} == {
        "city": "New York",
        "days": 3,
        "by_train": True,
    }


@every_format
def test_an_argument_given_twice_makes_no_call(name: str) -> None:
    text = CALLS[name].replace("days", "city")
    result = read(name, text)
    assert (result.calls, result.content) == ((), text)


@every_format
def test_name_and_strings_flow_as_they_come(name: str) -> None:
    parser = OutputParser(name, TOOLS)
    text = CALLS[name]
    found = [d for char in text[: text.index("York") + 4] for d in parser.feed(char)]
    assert [d.name for d in found if isinstance(d, ToolCallStart)] == ["plan-trip"]
    assert arguments_of(0, found) == '{"city": "New York'
    assert len([d for d in found if isinstance(d, ToolCallArguments)]) >= len("New York")
    assert not [d for d in found if isinstance(d, ContentDelta)]


@every_format
def test_b075_types_come_from_the_schema(name: str) -> None:
    text = CALLS[name].replace("New York", "00123")
    text = re.sub(r"(?<![\w.])3(?![\w.])", "3.0", re.sub(r'true(?!")', "True", text))
    ((_, arguments),) = values(read(name, text))
    assert arguments["city"] == "00123"
    assert (arguments["days"], type(arguments["days"])) == (3, int)
    assert arguments["by_train"] is True


@every_format
def test_b073_markers_and_braces_in_a_string_are_part_of_it(name: str) -> None:
    odd = 'a "q" \\d {x} [y] <z> & é😀\n\n</func'
    text = CALLS[name].replace("New York", odd)
    assert values(read(name, text)) == [("plan-trip", {**ARGUMENTS, "city": odd})]


@every_format
def test_b124_answers_read_at_once_do_not_mix(name: str) -> None:
    first, second = OutputParser(name, TOOLS), OutputParser(name, TOOLS)
    found: tuple[list[Any], list[Any]] = ([], [])
    for char in CALLS[name]:
        found[0].extend(first.feed(char))
        found[1].extend(second.feed(char))
    assert json.loads(arguments_of(0, found[0])) == ARGUMENTS
    assert json.loads(arguments_of(0, found[1])) == ARGUMENTS


@every_format
def test_a_whole_block_can_be_parsed(name: str) -> None:
    form = TOOL_FORMATS[name]
    inside = EMPTY[name].removeprefix(form.tool_call_start).removesuffix(form.tool_call_end)
    (call,) = form.parse_tool_call(inside, TOOLS)
    assert (call.name, call.arguments) == ("now", "{}")
    with pytest.raises(MalformedCall):
        form.parse_tool_call("no call", TOOLS)
