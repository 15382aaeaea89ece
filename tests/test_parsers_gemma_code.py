from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

import pytest

from mlx_server.parsers.output import ContentDelta, OutputParser
from mlx_server.parsers.tools.call import MalformedCall, ParsedCall
from mlx_server.parsers.tools.gemma_code import parse_tool_call
from tests.parser_cuts import Result, read_every_way, tool

TOOLS = (
    tool("get_weather", "city", "n"),
    tool("other"),
    tool("my-tool", "from", "max-results"),
)


def block(inside: str) -> str:
    return f"```tool_code\n{inside}\n```"


def read(text: str) -> Result:
    return read_every_way(text, TOOLS, "gemma_code")


def parsed(inside: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(call.name, json.loads(call.arguments)) for call in parse_tool_call(inside, TOOLS)]


def calls(*named: tuple[str, str], content: str = "") -> Result:
    return Result(content, named, named)


def test_every_line_is_a_call() -> None:
    text = block('get_weather(city="Paris", n=3)\nother(x=[1, 2])')
    assert read(f"Sure.\n{text}\nDone") == calls(
        ("get_weather", '{"city": "Paris", "n": 3}'),
        ("other", '{"x": [1, 2]}'),
        content="Sure.\n\nDone",
    )


def test_several_blocks_are_calls_in_order() -> None:
    expected = calls(("other", "{}"), ("get_weather", '{"city": "x"}'))
    assert read(block("other()") + "\n\n" + block("get_weather(city='x')") + "\n") == expected


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("-2.5", -2.5),
        ("1e3", 1000.0),
        ("True", True),
        ("None", None),
        ("[true, {'a': null}]", [True, {"a": None}]),
        ("'it''s'", "its"),
        ('"é \\n \\u00e9"', "é \n é"),
        ('"""two\nlines"""', "two\nlines"),
        ('{"a": [1, {"b": False}], "c": ""}', {"a": [1, {"b": False}], "c": ""}),
        ("(1, 2)", [1, 2]),
        (r'"\d+\w"', r"\d+\w"),
        (r"r'\d'", r"\d"),
        ('"# no comment"', "# no comment"),
    ],
)
def test_literals_are_values(value: str, meant: Any) -> None:
    assert parsed(f"other(x={value})") == [("other", {"x": meant})]


@pytest.mark.parametrize(
    "line",
    [
        "get_weather('Paris', 3)",
        "get_weather('Paris', n=3)",
        "print(get_weather(city='Paris', n=3))",
        "print(print(get_weather('Paris', 3)))",
        "result = get_weather(city='Paris', n=3)",
        "result: dict = get_weather(city='Paris', n=3)",
        "result = print(get_weather(city='Paris', n=3))",
        "get_weather(\n    city='Paris',  # the capital\n    n=3,\n)",
    ],
)
def test_wrappers_are_unwrapped_and_positions_follow_the_schema(line: str) -> None:
    assert parsed(line) == [("get_weather", {"city": "Paris", "n": 3})]


def test_one_print_may_hold_several_calls() -> None:
    assert parsed("print(other(), other(x=1))") == [("other", {}), ("other", {"x": 1})]


def test_a_declared_print_is_a_call() -> None:
    assert parse_tool_call("print(text='a')", [tool("print", "text")]) == [
        ParsedCall("print", '{"text": "a"}')
    ]


def test_names_that_are_not_python_find_their_way_back() -> None:
    assert parsed('my_tool(from_="a", max_results=2)') == [
        ("my-tool", {"from": "a", "max-results": 2})
    ]


def test_an_ellipsis_leaves_the_default() -> None:
    assert parsed("get_weather(city='Paris', n=...)") == [("get_weather", {"city": "Paris"})]


@pytest.mark.parametrize(
    "inside",
    [
        "",
        "# nothing",
        "x = 1",
        "other",
        "import os",
        "undeclared(x=1)",
        "other()\nundeclared()",
        "other(x=y)",
        "other(x=get_weather())",
        "other(x=1 + 2)",
        "other(x={1, 2})",
        "other(x=b'a')",
        "other(x=f'{1}')",
        "other(x=1e999)",
        "other(x=[...])",
        "other(*[1])",
        "other(**{'x': 1})",
        "other(x=1, x=2)",
        "get_weather('Paris', city='Paris')",
        "get_weather(1, 2, 3)",
        "os.other()",
        "other()()",
        "print()",
        "print(other(), 1)",
        "print(other(), sep='')",
        "[other() for _ in 'ab']",
        "if True:\n    other()",
        "def other(): pass",
        "other(x='",
        "other(x=" + "[" * 500 + "]" * 500 + ")",
        "other(x=" + "9" * 5000 + ")",
        "other(x='\0')",
        "other(x='\ud800')",
    ],
)
def test_anything_else_makes_the_block_content(inside: str) -> None:
    with pytest.raises(MalformedCall):
        parse_tool_call(inside, TOOLS)
    text = f"a {block(inside)} b"
    parser = OutputParser("gemma_code", TOOLS)
    content = [delta for delta in (*parser.feed(text), *parser.finish())]
    assert "".join(d.text for d in content if isinstance(d, ContentDelta)) == text
    assert parser.num_tool_calls == 0


@pytest.mark.parametrize(
    "text",
    [
        "```python\nother()\n```",
        "```\nother()\n```",
        "```tool_codes\nother()\n```",
        "```tool_output\nother()\n```",
        "say `other()` or ``other()``",
    ],
)
def test_other_fences_are_content(text: str) -> None:
    assert read(text) == calls(content=text)


@pytest.mark.parametrize(
    "string",
    ['"a ```b``` c"', "'''\n```\n'''", '"""\n```py\n\\"""```"""', "'\\'```'", '""", ```, """'],
)
def test_fences_inside_strings_do_not_end_the_block(string: str) -> None:
    arguments = json.dumps({"x": ast.literal_eval(string)})
    expected = calls(("other", arguments), content=" so")
    assert read(block(f"other(x={string})") + " so") == expected


def test_a_quote_that_is_never_closed_hides_no_fence_beyond_its_line() -> None:
    text = block("it's no call")
    expected = calls(("other", "{}"), content=f"{text}\n")
    assert read(f"{text}\n{block('other()')}") == expected


@pytest.mark.parametrize("end", ["", "\n", "\n`", "\n``"])
def test_a_block_without_its_closing_fence_counts_when_it_parses(end: str) -> None:
    assert read(f"```tool_code\nother(x=1){end}") == calls(("other", '{"x": 1}'))


@pytest.mark.parametrize("cut", ["oth", "other(", "other(x='a", "other()\noth", "other(x='``"])
def test_b079_a_block_that_is_cut_stays_as_raw_text(cut: str) -> None:
    text = f"ok ```tool_code\n{cut}"
    assert read(text) == calls(content=text)


def test_surrogate_escapes_stay_escapes() -> None:
    assert read(block(r"other(x='\ud800')")) == calls(("other", r'{"x": "\ud800"}'))


def test_plain_text_and_code_fences_flow_at_once() -> None:
    parser = OutputParser("gemma_code", TOOLS)
    pieces = ["Use `x` ", "here", "```python\n", "x = 1\n"]
    assert [parser.feed(piece) for piece in pieces] == [[ContentDelta(p)] for p in pieces]
