from __future__ import annotations

import json

import pytest

from mlx_server.parsers.output import (
    ContentDelta,
    OutputParser,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.parsers.tools.call import MalformedCall, ParsedCall
from mlx_server.parsers.tools.json_tools import parse_tool_call
from tests.parser_cuts import Result, read_every_way, tool

TOOLS = (tool("f", "c"),)


def block(inside: str) -> str:
    return f"<tool_call>{inside}</tool_call>"


def read(text: str) -> Result:
    return read_every_way(text, TOOLS, "json_tools")


def calls(*named: tuple[str, str], content: str = "") -> Result:
    return Result(content, named, named)


PARIS = block('{"name":"f","arguments":{"c":"Paris"}}')
TOKYO = block('\n{"name": "f", "arguments": {"c": "Tokyo"}}\n')


def test_b071_nested_arguments_are_read_to_their_own_end() -> None:
    arguments = '{"obj":{"db":"x","tags":["a","b"]},"n":1}'
    assert read(block(f'{{"name":"mk","arguments":{arguments}}}')) == calls(("mk", arguments))


def test_braces_quotes_and_markers_inside_strings_do_not_end_the_call() -> None:
    arguments = json.dumps({"s": 'a } ] { " \\ b', "t": "</tool_call> <tool_call>", "": "é😀"})
    assert read(block(f'{{"name":"f","arguments":{arguments}}}')) == calls(("f", arguments))


def test_b077_blocks_in_a_row_are_calls_in_order() -> None:
    assert read(f"{PARIS}\n{TOKYO}") == calls(("f", '{"c":"Paris"}'), ("f", '{"c": "Tokyo"}'))


@pytest.mark.parametrize(
    "inside",
    [
        '[{"name":"f","arguments":{"c":1}}, {"name":"g"}]',
        '{"name":"f","arguments":{"c":1}}\n{"name":"g"}\n',
        ' [ {"arguments":{"c":1},"name":"f"} , {"parameters":{},"name":"g"} ] ',
    ],
    ids=["list", "lines", "list with names last"],
)
def test_b077_one_block_may_hold_several_calls(inside: str) -> None:
    assert read(block(inside)) == calls(("f", '{"c":1}'), ("g", "{}"))


def test_b081_text_around_calls_is_content() -> None:
    expected = calls(("f", '{"c":"Paris"}'), content="Let me look. ")
    assert read(f"Let me look. {PARIS}") == expected
    expected = calls(("f", '{"c":"Paris"}'), ("f", '{"c": "Tokyo"}'), content="a and  b")
    assert read(f"a{PARIS} and {TOKYO} b") == expected


@pytest.mark.parametrize("text", ["a <tool_cal b", "a < b and c <", "<tool_call", "</tool_call>"])
def test_b081_text_without_a_call_comes_out_whole(text: str) -> None:
    assert read(text) == calls(content=text)


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ('{"name":"f"}', "{}"),
        ('{"name":"f","arguments":{}}', "{}"),
        ('{"name":"f","arguments":null}', "{}"),
        ('{"name":"f","arguments":""}', "{}"),
        ('{"arguments":null,"name":"f"}', "{}"),
        (r'{"name":"f","arguments":"{\"a\":1}"}', '{"a":1}'),
        (r'{"arguments":" {\"a\":\"\\d\"}\n","name":"f"}', r'{"a":"\\d"}'),
        ('{"name":"f","parameters":{"a":1}}', '{"a":1}'),
        ('{"parameters":{"a":1},"id":[7,{"name":"x"}],"name":"f","why":"so"}', '{"a":1}'),
    ],
)
def test_b085_arguments_are_always_the_text_of_one_object(call: str, arguments: str) -> None:
    assert read(block(call)) == calls(("f", arguments))


def test_b073_illegal_escapes_are_repaired_and_the_text_goes_on() -> None:
    text = block(r'{"name":"grep","arguments":{"re":"\d+"}}') + " and text"
    assert read(text) == calls(("grep", r'{"re":"\\d+"}'), content=" and text")


@pytest.mark.parametrize(
    "inside",
    [
        "f<arg_key>p</arg_key><arg_value>**/*.md</arg_value>",
        "\n<function=f>\n<parameter=c>1</parameter>\n</function>\n",
        "",
        "[]",
        "{}",
        "[1]",
        '{"name":"f",}',
        '{"name":f,"arguments":{}}',
        '{"name":"","arguments":{}}',
        '{"name":7}',
        '{"arguments":{}}',
        '{"arguments":{"c":1},"name":null}',
        '{"name":"f","name":"g"}',
        '{"name":"f","arguments":"no object"}',
        '{"name":"f","arguments":"{} {}"}',
        '{"name":"f","arguments":"[]"}',
        '{"name":"f","arguments":[1]}',
        '{"name":"f","arguments":7}',
        '{"name":"f","arguments":nope}',
        r'{"name":"\ud800","arguments":{}}',
        r'{"name":"f","arguments":"{\"a\":\"\ud800\"}"}',
        '{"name":"f"} and more',
        '{"name":"f"}, {"name":"g"}',
        '[{"name":"f"}',
        '[{"name":"f"}] {"name":"g"}',
        '{"name":"f"}</tool_cal>',
    ],
)
def test_b073_a_block_that_is_no_call_is_content_verbatim(inside: str) -> None:
    text = f"x {block(inside)} y"
    assert read(text) == calls(content=text)


@pytest.mark.parametrize(
    ("inside", "sent"),
    [
        ('{"name":"f","arguments":{"c":1 oops}}', '{"c":1 '),
        ('{"name":"f","arguments":{"c":1}} oops', '{"c":1'),
        ('{"name":"f","arguments":{"c":1}}}', '{"c":1'),
        ('{"name":"f","arguments":{"c":1},"arguments":{}}', '{"c":1'),
        ('{"name":"f","arguments":{}oops', "{"),
    ],
)
def test_a_call_that_breaks_after_its_start_is_content_and_its_arguments_are_no_json(
    inside: str, sent: str
) -> None:
    text = f"{block(inside)} y"
    assert read(text) == Result(text, (), (("f", sent),))


@pytest.mark.parametrize(
    ("text", "streamed"),
    [
        ('<tool_call>{"name":"write","arguments":{"text":"abc', (("write", '{"text":"abc'),)),
        ('<tool_call>{"name":"write","arguments":{', (("write", "{"),)),
        ('<tool_call>{"name":"write","arguments":', ()),
        ('<tool_call>{"name":"write"', ()),
        ('<tool_call>{"arguments":{"text":"abc"},"name":"wri', ()),
        ('<tool_call>{"name":"write","arguments":"{}', ()),
        ("<tool_call>", ()),
        ('<tool_call>[{"name":"f', ()),
    ],
)
def test_b079_a_call_that_is_cut_stays_as_raw_text(
    text: str, streamed: tuple[tuple[str, str], ...]
) -> None:
    assert read(f"ok {text}") == Result(f"ok {text}", (), streamed)


@pytest.mark.parametrize(
    "end",
    ["}", "}}", "}}\n", "}}</tool_", '},"id":"7'],
)
def test_a_call_whose_arguments_are_complete_needs_no_closing_marker(end: str) -> None:
    text = f'<tool_call>{{"name":"f","arguments":{{"c":1{end}'
    assert read(text) == calls(("f", '{"c":1}'))


def test_a_call_without_arguments_needs_its_closing_brace() -> None:
    assert read('<tool_call>{"name":"f"}') == calls(("f", "{}"))


def test_a_new_block_closes_the_one_before() -> None:
    text = f'<tool_call>{{"name":"f","arguments":{{"c":1}}}}{PARIS}'
    assert read(text) == calls(("f", '{"c":1}'), ("f", '{"c":"Paris"}'))


def test_calls_before_a_broken_one_stay_and_the_rest_is_content() -> None:
    text = block('[{"name":"f","arguments":{"c":1}},{"name":"g", oops}]') + " y"
    assert read(text) == calls(("f", '{"c":1}'), content=',{"name":"g", oops}]</tool_call> y')


def test_calls_behind_a_broken_one_are_read() -> None:
    broken = block('{"name":"f", oops}')
    assert read(f"{broken}\n{PARIS}") == calls(("f", '{"c":"Paris"}'), content=f"{broken}\n")
    assert read(f'<tool_call>{{"name":{PARIS}') == calls(
        ("f", '{"c":"Paris"}'), content='<tool_call>{"name":'
    )


def test_white_space_before_a_broken_block_is_kept() -> None:
    assert read(f"{PARIS}\n\n<tool_call>no") == calls(
        ("f", '{"c":"Paris"}'), content="\n\n<tool_call>no"
    )


def test_an_undeclared_name_is_reported() -> None:
    assert read(block('{"name":"never_declared"}')) == calls(("never_declared", "{}"))


def test_the_start_is_sent_when_the_arguments_begin_and_they_follow_as_they_come() -> None:
    parser = OutputParser("json_tools", TOOLS)
    assert parser.feed('<tool_call>{"name": "f"') == []
    assert parser.feed(', "arguments": ') == []
    start, brace = parser.feed("{")
    assert isinstance(start, ToolCallStart) and (start.index, start.name) == (0, "f")
    assert brace == ToolCallArguments(0, "{")
    assert parser.feed('"c": "Par') == [ToolCallArguments(0, '"c": "Par')]
    assert parser.feed("is") == [ToolCallArguments(0, "is")]
    assert parser.feed('"}}') == [ToolCallArguments(0, '"')]
    assert parser.feed("</tool_call>") == [ToolCallArguments(0, "}")]
    assert parser.finish() == []


def test_arguments_before_the_name_wait_for_it() -> None:
    parser = OutputParser("json_tools", TOOLS)
    assert parser.feed('<tool_call>{"arguments": {"c": 1}, "name": "f"') == []
    start, arguments = parser.feed("}</tool_call>")
    assert isinstance(start, ToolCallStart)
    assert arguments == ToolCallArguments(0, '{"c": 1}')


def test_text_behind_a_broken_call_flows_again() -> None:
    parser = OutputParser("json_tools", TOOLS)
    parser.feed("<tool_call>no")
    assert parser.feed(" json") == [ContentDelta(" json")]


def test_a_block_can_be_parsed_as_a_whole() -> None:
    assert parse_tool_call('\n[{"name":"f","arguments":{"c":1}},{"name":"g"}]\n', TOOLS) == [
        ParsedCall("f", '{"c":1}'),
        ParsedCall("g", "{}"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        '{"name":"f"',
        '{"name":"f"} x',
        '{"name":"f"}</tool_call>',
        '{"name":"f"}<tool_call>',
    ],
)
def test_a_whole_block_that_is_no_call_is_refused(text: str) -> None:
    with pytest.raises(MalformedCall):
        parse_tool_call(text, TOOLS)
