"""Messages, pictures and tools as the engine is given them, by what a client sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_server.engine.sequence import (
    ChatMessage,
    ImagePart,
    TextPart,
    ToolCall,
)
from tests.asgi_client import call, make_app
from tests.chat_requests import IMAGE, PATH, USER, message, prompt, refused
from tests.fake_engine import answering


def test_b028_text_parts_are_kept_in_order() -> None:
    parts = [{"type": "text", "text": "AAA"}, {"type": "text", "text": "BBB"}]

    assert message({"role": "user", "content": parts}).content == (TextPart("AAA"), TextPart("BBB"))


def test_b098_images_keep_their_place_between_texts() -> None:
    parts = [
        {"type": "text", "text": "one"},
        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "high"}},
        {"type": "text", "text": "two"},
        {"type": "image_url", "image_url": IMAGE},
    ]

    assert message({"role": "user", "content": parts}).content == (
        TextPart("one"),
        ImagePart(IMAGE, "messages.0.content.1.image_url"),
        TextPart("two"),
        ImagePart(IMAGE, "messages.0.content.3.image_url"),
    )


def test_b030_developer_is_the_system() -> None:
    assert message({"role": "developer", "content": "Be brief"}) == ChatMessage(
        "system", (TextPart("Be brief"),)
    )


CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":2}'}}


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_b026_calls_need_no_content(content: dict[str, Any]) -> None:
    assert message({"role": "assistant", **content, "tool_calls": [CALL]}) == ChatMessage(
        "assistant", tool_calls=(ToolCall("c1", "add", {"a": 2}),)
    )


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_any_message_may_come_without_content(role: str) -> None:
    # Routers that write the body anew drop null fields.
    assert message({"role": role}).content == ()


@pytest.mark.parametrize("content", ["42.69", [{"type": "text", "text": "42.69"}]])
def test_b032_tool_results_may_be_parts(content: Any) -> None:
    sent = {"role": "tool", "tool_call_id": "c1", "name": "add", "content": content}

    assert message(sent) == ChatMessage("tool", (TextPart("42.69"),), name="add", tool_call_id="c1")


@pytest.mark.parametrize(
    ("sent", "decoded"),
    [
        ('{"city":"Paris"}', {"city": "Paris"}),
        ({"city": "Paris"}, {"city": "Paris"}),
        ('"{\\"city\\":\\"Paris\\"}"', {"city": "Paris"}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ('{"text":"cut', {"arguments": '{"text":"cut'}),
        ("[1]", {"arguments": [1]}),
        (r'{"a":"\ud800"}', {"a": "\ufffd"}),
    ],
)
def test_b033_arguments_of_the_history_are_objects(sent: Any, decoded: Any) -> None:
    tool_call = {"id": "c1", "index": 0, "function": {"name": "f", "arguments": sent}}

    (read,) = message({"role": "assistant", "tool_calls": [tool_call]}).tool_calls

    assert read == ToolCall("c1", "f", decoded)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_b093_thoughts_of_the_history_are_taken_under_both_names(field: str) -> None:
    sent = {"role": "assistant", "content": "4", field: "2+2"}

    assert message(sent).reasoning_content == "2+2"


def test_an_answer_can_be_sent_back_as_history() -> None:
    engine = answering(
        'Wait. <tool_call>{"name":"f","arguments":{"a":1}}</tool_call>', tool_format="json_tools"
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    answer = call(make_app(engine), PATH, {"messages": [USER], "tools": tools}).json
    answered = answer["choices"][0]["message"]
    assert answered["tool_calls"]

    read = message(answered)

    assert read.tool_calls[0].arguments == {"a": 1}
    assert read.tool_calls[0].id == answered["tool_calls"][0]["id"]


def test_refusal_of_the_history_is_text() -> None:
    assert message({"role": "assistant", "content": None, "refusal": "No."}).content == (
        TextPart("No."),
    )
    parts = [{"type": "refusal", "refusal": "No."}]
    assert message({"role": "assistant", "content": parts}).content == (TextPart("No."),)


def test_b004_half_characters_are_replaced_and_pairs_kept() -> None:
    body = rb'{"messages":[{"role":"user","content":"a\ud800b \ud83d\ude00 \\ud800 \udc00"}]}'
    engine = answering("ok")

    answer = call(make_app(engine), PATH, body)

    assert answer.status == 200
    (sent,) = engine.requests[0].prompt.messages  # type: ignore[union-attr]
    assert sent.content == (TextPart("a\ufffdb 😀 \\ud800 \ufffd"),)


def test_nulls_inside_messages_and_tools_are_absence() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": None, "strict": None}}
    names = ("name", "tool_calls", "tool_call_id", "refusal", "audio", "function_call")

    read = prompt({**USER, **dict.fromkeys(names)}, tools=[tool])

    assert read.messages == (ChatMessage("user", (TextPart("hi"),)),)
    assert read.tools == ({"type": "function", "function": {"name": "f"}},)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "messages.0.content.0.input_audio",
        ),
        ([USER, {"role": "assistant", "audio": {"id": "a"}}], "messages.1.audio"),
    ],
)
def test_parts_of_messages_that_cannot_be_honoured_are_refused(messages: Any, param: str) -> None:
    error = refused(messages=messages)

    assert error["code"] == "unsupported_parameter"
    assert error["param"] == param


def with_part(role: str = "user", **part: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [part]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "x", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (with_part(type="text"), "messages.0.content.0.text"),
        (with_part(type="image_url"), "messages.0.content.0.image_url"),
        (with_part("system", type="image_url", image_url=IMAGE), "messages.0.content.0"),
        ({"messages": [{**USER, "tool_calls": [CALL]}]}, "messages.0.tool_calls"),
        ({"messages": [USER, "hi"]}, "messages.1"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools.0.function.parameters",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
    ],
)
def test_b013_errors_name_the_place(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields)["param"] == param


def test_tools_reach_the_template_as_they_were_sent() -> None:
    function = {
        "strict": True,
        "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
        "name": "f",
    }

    (tool,) = prompt(USER, tools=[{"type": "function", "function": function}]).tools

    assert json.dumps(tool) == json.dumps({"type": "function", "function": function})
