"""What of a Responses request is refused, always by name and before any work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.asgi_client import call, make_app
from tests.fake_engine import answering
from tests.responses_requests import PATH, TOOL, USER_HI, refused


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", True),
        ("context_management", [{"type": "compaction"}]),
        ("conversation", "conv_1"),
        ("max_completion_tokens", 9),
        ("max_tokens", 9),
        ("max_tool_calls", 3),
        ("messages", [USER_HI]),
        ("moderation", {}),
        ("n", 2),
        ("prompt", {"id": "p"}),
        ("reasoning_effort", "low"),
        ("response_format", {"type": "json_object"}),
        ("service_tier", "flex"),
        ("truncation", "auto"),
    ],
)
def test_b037_what_is_not_honoured_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})

    assert (error["param"], error["code"]) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, {"type": "mcp", "server_url": "x"}]}, "tools.1.type"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input.0.type"),
        ({"input": [{"type": "compaction", "encrypted_content": 1}]}, "input.0.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "input.0.content.0.input_file",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "input.0.content.0.file_id",
        ),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
    ],
)
def test_parts_that_are_not_served_are_refused_by_name(fields: Any, param: str) -> None:
    error = refused(**fields)

    assert (error["param"], error["code"]) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": 1}, "input"),
        ({"input": []}, "input"),
        ({"input": [1]}, "input.0"),
        ({"input": [{}]}, "input.0.type"),
        ({"input": [{"type": "message", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": 1}]}, "input.0.content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input.0.content.0.text",
        ),
        (
            {"input": [{"role": "system", "content": [{"type": "input_image"}]}]},
            "input.0.content.0",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "input.0.name"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input.0.output"),
        ({"include": ["web_search_call.results"]}, "include.0"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_b013_what_is_wrong_is_a_400_that_names_the_field(fields: Any, param: str) -> None:
    assert refused(**fields)["param"] == param


def test_the_input_is_required() -> None:
    answer = call(make_app(answering("ok")), PATH, {"model": "fake"})

    assert (answer.status, answer.error["param"]) == (400, "input")
