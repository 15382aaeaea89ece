"""What must hold for every text and every way to cut it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_server.parsers.json_scanner import JsonScanner
from mlx_server.parsers.output import ContentDelta, OutputParser
from mlx_server.parsers.reasoning import REASONING_FORMATS
from tests.parser_cuts import read, tool

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = (tool("f", "a"), tool("my-tool"))
COMMON = ["a", " ", "\n", "f", "<", "`", "```", '"', "'", "\\", "\\u", "é", "😀", "text"]
JSON_BITS = [
    "<tool_call>",
    "</tool_call>",
    "</tool",
    "{",
    "}",
    "}}",
    "[",
    "]",
    ",",
    ":",
    '"name":"f"',
    '"arguments":',
    '{"name":"f","arguments":{',
    '"a":',
    "1",
    "-",
    "true",
    "null",
    "d800",
]
CODE_BITS = [
    "```tool_code",
    "```tool_code\n",
    "\n```",
    "f(",
    "my_tool(",
    ")",
    "a=",
    "print(",
    "x = ",
    '"""',
    "'''",
    "#",
    ",",
    "[",
    "]",
    "...",
]
BITS = {"json_tools": COMMON + JSON_BITS, "gemma_code": COMMON + CODE_BITS}

quick = settings(max_examples=300, deadline=None, derandomize=True, database=None)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # halves of surrogate pairs cannot come from a model's text
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"\\}{é'), inner, max_size=3)
    ),
    max_leaves=10,
)
json_objects = st.dictionaries(st.text('ab"\\}{é'), json_values, max_size=3)


def cut(text: str, data: Any) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6), label="cuts"))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def texts(tool_format: str) -> Any:
    return st.lists(st.sampled_from(BITS[tool_format]), max_size=25).map("".join)


@pytest.mark.parametrize("tool_format", sorted(BITS))
@quick
@given(st.data())
def test_no_cut_changes_the_result_and_complete_calls_hold_objects(
    tool_format: str, data: Any
) -> None:
    text = data.draw(texts(tool_format), label="text")
    whole = read([text], TOOLS, tool_format)
    assert read(cut(text, data), TOOLS, tool_format) == whole
    assert read(text, TOOLS, tool_format) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)
        arguments.encode()
    if not whole.calls:
        assert whole.content == text


REASONING_BITS = {
    "think": ["<think>", "</think>", "<thinking>", "</thi"],
    "gemma4": ["<|channel>thought\n", "<channel|>", "<|channel>"],
    "solar_open": ["<|think|>", "<|end|>", "<|begin|>assistant", "<|content|>"],
}


@pytest.mark.parametrize("reasoning_format", sorted(REASONING_BITS))
@pytest.mark.parametrize("tool_format", sorted(BITS))
@quick
@given(st.data(), st.booleans())
def test_no_cut_changes_what_is_reasoning_and_nothing_is_lost(
    tool_format: str, reasoning_format: str, data: Any, is_reasoning: bool
) -> None:
    bits = [*BITS[tool_format], *REASONING_BITS[reasoning_format] * 3]
    text = data.draw(st.lists(st.sampled_from(bits), max_size=25).map("".join), label="text")
    asked = (TOOLS, tool_format, reasoning_format, is_reasoning)
    whole = read([text], *asked)
    assert read(cut(text, data), *asked) == whole
    assert read(text, *asked) == whole
    if not whole.calls:
        written = text
        for mark in REASONING_FORMATS[reasoning_format].marks:
            written = written.replace(mark, "")
        shown = whole.reasoning + whole.content
        for mark in REASONING_FORMATS[reasoning_format].marks:
            shown = shown.replace(mark, "")
        assert sorted("".join(shown.split())) == sorted("".join(written.split()))


@quick
@given(st.data(), json_objects, st.booleans(), st.sampled_from([None, 2]))
def test_any_object_arrives_as_it_was_written(
    data: Any, arguments: Any, ascii_only: bool, spaces: int | None
) -> None:
    call = {"name": "f", "arguments": arguments}
    inside = json.dumps(call, ensure_ascii=ascii_only, indent=spaces)
    found = read(cut(f"<tool_call>{inside}</tool_call>", data), TOOLS, "json_tools")
    ((name, text),) = found.calls
    assert (found.content, name, json.loads(text)) == ("", "f", arguments)


@quick
@given(texts("json_tools").filter(lambda text: "<" not in text))
def test_text_without_a_marker_comes_out_of_the_feed_that_brought_it(text: str) -> None:
    parser = OutputParser("json_tools", TOOLS)
    assert [parser.feed(char) for char in text] == [[ContentDelta(char)] for char in text]
    assert parser.finish() == []


@quick
@given(st.lists(st.sampled_from(BITS["json_tools"]), max_size=12).map("".join))
def test_the_scanner_agrees_with_json_loads(bits: str) -> None:
    text = f"[{bits}]"
    scanner = JsonScanner()
    scanned = scanner.feed(text)
    try:
        json.loads(text)
    except ValueError:
        if scanner.is_complete:
            json.loads(scanned.text)
    else:
        assert scanner.is_complete
        assert scanned.text == text
