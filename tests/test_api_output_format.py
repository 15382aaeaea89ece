"""What a client says its answer must be, and which tools it wants called."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.engine.sequence import ChatPrompt, ResponseFormat, ToolChoice
from tests.chat_requests import asked, refused

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
PLACE = "response_format.json_schema.schema"


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **fields}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            ResponseFormat("json_schema", {"type": "object"}),
        ),
        (
            {"response_format": json_schema(SCHEMA, strict=True)},
            ResponseFormat("json_schema", SCHEMA, PLACE),
        ),
        (
            {"structured_outputs": {"json": SCHEMA}},
            ResponseFormat("json_schema", SCHEMA, "structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"regex": "a+"}},
            ResponseFormat("regex", "a+", "structured_outputs.regex"),
        ),
        (
            {"structured_outputs": {"choice": ["a", "b"]}},
            ResponseFormat("choice", ["a", "b"], "structured_outputs.choice"),
        ),
        (
            {"structured_outputs": {"grammar": 'start: "a"'}},
            ResponseFormat("lark", 'start: "a"', "structured_outputs.grammar"),
        ),
    ],
)
def test_the_form_of_the_answer_reaches_the_engine(
    fields: dict[str, Any], expected: ResponseFormat | None
) -> None:
    assert asked(**fields).response_format == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": json_schema({"type": "objec"})}, PLACE),
        ({"response_format": json_schema({"$ref": "file:///etc/passwd"})}, PLACE),
        (
            {"response_format": json_schema(SCHEMA) | {"json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "begin"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
    ],
)
def test_what_no_grammar_can_be_made_of_is_refused(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error["param"] == param
    assert "passwd" not in error["message"]


def test_a_schema_without_end_is_refused() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(80):
        schema = {"type": "object", "properties": {"a": schema}}
    assert refused(response_format=json_schema(schema))["param"] == PLACE


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice()),
        ("required", ToolChoice("required")),
        (function("g"), ToolChoice("named", "g")),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [function("g")]},
            },
            ToolChoice("required"),
        ),
    ],
)
def test_the_choice_of_tools_reaches_the_engine(choice: Any, expected: ToolChoice) -> None:
    request = asked(tools=[function("f"), function("g")], tool_choice=choice)
    assert request.tool_choice == expected


def shown(**fields: Any) -> Any:
    prompt = asked(**fields).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.tools


def test_only_the_allowed_tools_are_shown_and_without_a_choice_none() -> None:
    tools = [function("f"), function("g")]
    allowed = {"mode": "auto", "tools": [function("g")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert shown(tools=tools, tool_choice=choice) == (function("g"),)
    assert shown(tools=tools, tool_choice="none") == ()


def test_calls_may_be_limited_to_one() -> None:
    assert not asked(tools=[function("f")], parallel_tool_calls=False).tool_choice.is_parallel


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": function("f")}, "tool_choice"),
        (
            {"tools": [function("f")], "tool_choice": function("g")},
            "tool_choice.function.name",
        ),
        ({"tools": [function("f")], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        (
            {"tools": [function("f")], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.allowed_tools",
        ),
        ({"tools": [function("f")], "tool_choice": "any"}, "tool_choice.type"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields)["param"] == param


def test_a_budget_for_thinking_comes_in_two_forms() -> None:
    assert asked(thinking_budget=9).thinking_budget == 9
    request = asked(thinking={"type": "enabled", "budget_tokens": 7})
    assert request.thinking_budget == 7
    assert asked().thinking_budget is None
