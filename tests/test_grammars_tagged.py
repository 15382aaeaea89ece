"""What the grammars of the formats in tags let through is what their parsers read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from tests.grammars import accepts, calls_grammar
from tests.parser_cuts import read
from tests.tagged_calls import ARGUMENTS, CALLS, EMPTY, NAMES, TOOLS, TRIP, in_one_block

every_format = pytest.mark.parametrize("name", NAMES)


def tool(properties: dict[str, Any], **keywords: Any) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": properties, **keywords}
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


def written(name: str, key: str, value: str, *, is_text: bool = True) -> str:
    """A call of `f` with one argument, made of the call of the examples."""
    text = CALLS[name].replace("plan-trip", "f")
    start = text.index("New York")
    head, tail = text[:start], text[start + len("New York") :]
    if not is_text:
        head = head.replace('string="true"', 'string="false"')
    if name in ("gemma4", "functiongemma"):
        quote = {"gemma4": '<|"|>', "functiongemma": "<escape>"}[name]
        end = tail[tail.index("]}") + 1 :]
        tail = (quote if is_text else "") + end
        head = head if is_text else head.removesuffix(quote)
    else:
        following = min(at for at in (tail.find(m, 1) for m in STARTS_OF_KEYS) if at > 0)
        tail = tail[:following] + tail[tail.rindex(LAST_END[name]) :]
    return (head + value + tail).replace("city", key)


STARTS_OF_KEYS = (
    "<parameter",
    "<arg_key",
    "<longcat_arg_key",
    "<atem:parameter",
    "<｜DSML｜parameter",
    "<param",
    "]<]minimax[>[<days",
)
LAST_END = {
    "qwen3_coder": "</function>",
    "glm4_moe": "</tool_call>",
    "longcat": "</longcat_tool_call>",
    "minimax_m2": "</invoke>",
    "minimax_m3": "]<]minimax[>[</invoke>",
    "minicpm5": "</function>",
    "atem": "</atem:invoke>",
    "deepseek_v32": "</｜DSML｜invoke>",
    "deepseek_v4": "</｜DSML｜invoke>",
}


def arguments(name: str, text: str, tools: Any) -> Any:
    ((_, found),) = read([text], tools, name).calls
    return json.loads(found)


@every_format
def test_calls_are_let_through_one_or_many(name: str) -> None:
    many = calls_grammar(name, TOOLS)
    assert accepts(many, CALLS[name])
    assert accepts(many, EMPTY[name])
    assert accepts(many, in_one_block(name))
    single = calls_grammar(name, TOOLS, is_parallel=False)
    assert accepts(single, CALLS[name])
    assert not accepts(single, in_one_block(name))


@every_format
def test_what_is_let_through_is_valid_when_read(name: str) -> None:
    found = arguments(name, CALLS[name], TOOLS)
    assert found == ARGUMENTS
    jsonschema.validate(found, TRIP["function"]["parameters"])


@every_format
def test_what_is_no_call_of_these_tools_is_not(name: str) -> None:
    lark = calls_grammar(name, TOOLS)
    text = CALLS[name]
    for wrong in (
        text.replace("3", "three"),
        text.replace("true", "maybe").replace('string="maybe"', 'string="true"'),
        text.replace("nights", "days"),
        text.replace("plan-trip", "other"),
        text.replace("city", "town"),
        EMPTY[name].replace("now", "plan-trip"),
        text[:-2],
        f"Sure. {text}",
    ):
        assert not accepts(lark, wrong), wrong


@every_format
def test_marks_may_be_tokens_of_their_own(name: str) -> None:
    marks = {
        "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
        "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
        "glm4_moe": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "</arg_value>"),
        "minimax_m3": ("]<]minimax[>[",),
        "minicpm5": ("<function", "</function>", "<param", "</param>"),
        "qwen3_coder": ("<tool_call>", "</tool_call>", "<parameter=", "</parameter>"),
        "deepseek_v4": ("｜DSML｜",),
    }.get(name, ("<tool_call>", "</tool_call>"))
    assert accepts(calls_grammar(name, TOOLS, added=marks), CALLS[name], marks)
    lark = calls_grammar(name, tool({"k": {"type": "string", "maxLength": 2}}), added=marks)
    assert accepts(lark, written(name, "k", "ab"), marks)
    assert not accepts(lark, written(name, "k", "abc"), marks)


@every_format
def test_a_string_may_be_bounded(name: str) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"enum": ["red", "dark blue"]}, "dark blue", "green"),
        ({"const": "x"}, "x", "y"),
        ({"minLength": 2, "maxLength": 4}, "é b", "abcde"),
        ({"pattern": "^[0-9]{5}$"}, "02134", "2134"),
        ({"pattern": "a/b"}, "x a/b y", "a b"),
    ]
    for bounds, right, wrong in cases:
        tools = tool({"k": {"type": "string", **bounds}}, required=["k"])
        lark = calls_grammar(name, tools)
        text = written(name, "k", right)
        assert accepts(lark, text), (bounds, text)
        assert arguments(name, text, tools) == {"k": right}
        assert not accepts(lark, written(name, "k", wrong)), (bounds, wrong)


@every_format
def test_a_string_or_nothing_needs_no_quotes(name: str) -> None:
    schema = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    tools = tool({"k": schema}, required=["k"])
    lark = calls_grammar(name, tools)
    is_marked = name in ("gemma4", "functiongemma", "deepseek_v4", "deepseek_v32")
    assert accepts(lark, written(name, "k", "null", is_text=not is_marked))
    if not name.startswith("deepseek"):
        assert accepts(lark, written(name, "k", "a b"))
        assert arguments(name, written(name, "k", "a b"), tools) == {"k": "a b"}


@every_format
def test_optional_arguments_may_be_left_out_in_any_number(name: str) -> None:
    properties = {key: {"type": "string"} for key in ("a", "b", "k")}
    assert accepts(calls_grammar(name, tool(properties)), written(name, "k", "x"))
    assert accepts(calls_grammar(name, tool(properties)), EMPTY[name].replace("now", "f"))
    lark = calls_grammar(name, tool(properties, required=["b"]))
    assert not accepts(lark, written(name, "k", "x"))


def test_definitions_that_name_themselves_are_let_through() -> None:
    node = {
        "type": "object",
        "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}},
        "required": ["v"],
        "additionalProperties": False,
    }
    tools = tool({"k": {"$ref": "#/$defs/Node"}}, required=["k"], **{"$defs": {"Node": node}})
    lark = calls_grammar("gemma4", tools)
    assert accepts(lark, "<|tool_call>call:f{k:{v:1,next:{v:2}}}<tool_call|>")
    assert not accepts(lark, "<|tool_call>call:f{k:{v:1,next:{w:2}}}<tool_call|>")
    lark = calls_grammar("glm4_moe", tools)
    inside = '<arg_key>k</arg_key><arg_value>{"v": 1, "next": {"v": 2}}</arg_value>'
    assert accepts(lark, f"<tool_call>f{inside}</tool_call>")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1}, "[1,2]", "[]"),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, "[]", "[1,2,3]"),
        ({"type": "object"}, '{a:1,b:[true,{c:<|"|>x<|"|>}]}', "{a}"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "{a:1}", "{a:true}"),
        ({"enum": [1, "a", None, [1], {"b": 2}]}, "{b:2}", "{b:3}"),
        ({"enum": [1, "a"]}, '<|"|>a<|"|>', "a"),
        ({"type": "integer", "minimum": 3}, "3", "2"),
        ({"type": ["integer", "null"]}, "null", "true"),
        ({}, "[1]", "bare"),
    ],
)
def test_gemma_values_keep_to_their_schema(schema: Any, right: str, wrong: str) -> None:
    tools = tool({"k": schema}, required=["k"])
    lark = calls_grammar("gemma4", tools)
    text = f"<|tool_call>call:f{{k:{right}}}<tool_call|>"
    assert accepts(lark, text)
    jsonschema.validate(arguments("gemma4", text, tools)["k"], schema)
    assert not accepts(lark, text.replace(right, wrong))
