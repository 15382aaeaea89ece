"""What the grammars of the formats in JSON and Python let through is what their parsers read."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from mlx_server.parsers.tools.special_marks import special_marks
from tests.grammars import accepts, calls_grammar
from tests.literal_calls import ARGUMENTS, FORMS, TOOLS, TRIP
from tests.parser_cuts import read

every_form = pytest.mark.parametrize("form", FORMS)
PYTHON = ("pythonic", "llama4_pythonic", "gemma_code")


def values(text: str, tools: Any, name: str) -> list[tuple[str, Any]]:
    return [(call, json.loads(arguments)) for call, arguments in read([text], tools, name).calls]


@every_form
def test_calls_are_let_through_one_or_many(form: str) -> None:
    name, one, two = FORMS[form]
    many = calls_grammar(name, TOOLS)
    assert accepts(many, one)
    assert accepts(many, two)
    single = calls_grammar(name, TOOLS, is_parallel=False)
    assert accepts(single, one)
    assert not accepts(single, two)


@every_form
def test_what_is_let_through_is_valid_when_read(form: str) -> None:
    name, one, _ = FORMS[form]
    ((_, found),) = values(one, TOOLS, name)
    assert found == ARGUMENTS
    jsonschema.validate(found, TRIP["function"]["parameters"])


@every_form
def test_what_is_no_call_of_these_tools_is_not(form: str) -> None:
    name, one, _ = FORMS[form]
    lark = calls_grammar(name, TOOLS)
    for wrong in (
        one.replace("3", '"three"'),
        one.replace("true", "1").replace("True", "1"),
        one.replace("plan", "fly"),
        one.replace("city", "town"),
        one[:-1],
        f"Sure. {one}",
    ):
        assert wrong != one and not accepts(lark, wrong), wrong


@every_form
def test_marks_may_be_tokens_of_their_own(form: str) -> None:
    name, _, two = FORMS[form]
    marks = tuple(mark for mark in special_marks(name) if mark in two) or ("<other>",)
    assert accepts(calls_grammar(name, TOOLS, added=marks), two, marks)


def one_argument(schema: Any, **keywords: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"a-b": schema}, "required": ["a-b"], **keywords}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


@pytest.mark.parametrize(
    ("schema", "literal", "value"),
    [
        ({"type": "string"}, '"it\'s \\"é\\" \\\\d\\n"', 'it\'s "é" \\d\n'),
        ({"type": "string", "maxLength": 2}, '"ab"', "ab"),
        ({"type": "integer"}, "-3", -3),
        ({"type": "number"}, "1.5e3", 1500.0),
        ({"type": "boolean"}, "False", False),
        ({"type": ["string", "null"]}, "None", None),
        ({"enum": ["a", None, True, 2]}, "True", True),
        ({"const": {"k": [None]}}, '{"k": [None]}', {"k": [None]}),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1, 2]", [1, 2]),
        ({}, '{"a": [1, {"b": None}], "c": True}', {"a": [1, {"b": None}], "c": True}),
        (
            {"type": "object", "properties": {"x": {"type": "integer"}, "y": {}}},
            '{"y": "z"}',
            {"y": "z"},
        ),
        ({"anyOf": [{"type": "integer"}, {"type": "array", "items": {}}]}, "[]", []),
        ({"$ref": "#/$defs/tree"}, '{"t": {"t": None}}', {"t": {"t": None}}),
    ],
)
@pytest.mark.parametrize("name", PYTHON)
def test_literals_of_python_are_held_to_their_schema(
    name: str, schema: Any, literal: str, value: Any
) -> None:
    tree = {
        "type": ["object", "null"],
        "properties": {"t": {"$ref": "#/$defs/tree"}},
        "required": ["t"],
    }
    tools = one_argument(schema, **{"$defs": {"tree": tree}})
    text = f"f(a_b={literal})"
    text = f"```tool_code\n{text}\n```" if name == "gemma_code" else f"[{text}]"
    assert accepts(calls_grammar(name, tools), text)
    assert values(text, tools, name) == [("f", {"a-b": value})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", "[f(x=1), g(x=True)]"),
        ("gemma4", "<|tool_call>call:f{x:1}<tool_call|><|tool_call>call:g{x:true}<tool_call|>"),
    ],
)
def test_definitions_belong_to_their_tool(name: str, text: str) -> None:
    def with_definition(function: str, kind: str) -> dict[str, Any]:
        schema = {
            "properties": {"x": {"$ref": "#/$defs/x"}},
            "required": ["x"],
            "$defs": {"x": {"type": kind}},
        }
        return {"type": "function", "function": {"name": function, "parameters": schema}}

    tools = [with_definition("f", "integer"), with_definition("g", "boolean")]
    assert accepts(calls_grammar(name, tools), text)


@pytest.mark.parametrize(
    ("schema", "literal"),
    [
        ({"type": "string"}, "3"),
        ({"type": "string"}, '"\\/"'),
        ({"type": "string", "maxLength": 2}, '"abc"'),
        ({"type": "integer"}, "1.5"),
        ({"type": "boolean"}, "false"),
        ({"enum": ["a", None]}, '"b"'),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1]"),
        ({"type": "object", "required": ["x"]}, "{}"),
    ],
)
def test_other_literals_are_not_let_through(schema: Any, literal: str) -> None:
    lark = calls_grammar("pythonic", one_argument(schema))
    assert not accepts(lark, f"[f(a_b={literal})]")
