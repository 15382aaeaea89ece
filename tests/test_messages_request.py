"""What a messages request asks of the engine, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.engine.sequence import (
    ChatMessage,
    ImagePart,
    ResponseFormat,
    SamplingParams,
    TextPart,
    ToolCall,
    ToolChoice,
)
from tests.asgi_client import call, make_app
from tests.fake_engine import answering
from tests.messages_requests import (
    CACHED,
    CALLED,
    IMAGE,
    PATH,
    RESULT,
    SCHEMA,
    TOOL,
    USER,
    Body,
    asked,
    assistant,
    body,
    prompt,
    refused,
    text,
    user,
)


def said(role: Any, *words: str) -> ChatMessage:
    return ChatMessage(role, tuple(map(TextPart, words)))


def test_the_smallest_request() -> None:
    request = asked()

    assert request.prompt == prompt({"role": "user", "content": [text("hi")]})
    assert request.model == "fake"
    assert request.max_tokens == 100
    assert request.sampling == SamplingParams()
    assert request.request_id.startswith("msg_")


def test_the_path_is_served_without_v1_too() -> None:
    assert call(make_app(answering("ok")), "/messages", body()).status == 200


def test_parameters_reach_the_engine() -> None:
    request = asked(temperature=0.5, top_p=0.9, top_k=20.0, stop_sequences=["END", "", "\n\n"])

    assert request.sampling == SamplingParams(temperature=0.5, top_p=0.9, top_k=20)
    assert request.stop == ("END", "\n\n")


def test_b035_nulls_are_the_same_as_nothing() -> None:
    nulls = dict.fromkeys(
        ["system", "tools", "tool_choice", "thinking", "stop_sequences", "stream", "temperature"]
        + ["top_p", "top_k", "metadata", "service_tier", "output_config", "cache_control"]
        + ["container", "mcp_servers", "context_management", "inference_geo"]
    )
    sent: Body = {**USER, "content": [text("hi", cache_control=None, citations=None)]}
    request = asked(**nulls, messages=[sent])
    plain = asked()
    assert (request.prompt, request.sampling, request.stop) == (plain.prompt, plain.sampling, ())


def test_labels_and_hints_are_taken() -> None:
    tool = {**TOOL, **CACHED, "type": "custom", "eager_input_streaming": True}
    request = asked(
        metadata={"user_id": "u"},
        service_tier="standard_only",
        system=[text("be kind", **CACHED)],
        messages=[user(text("hi", **CACHED))],
        tools=[tool],
        cache_control={"type": "ephemeral"},
        inference_geo="global",
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        foo=1,
    )
    assert request.prompt == asked(system="be kind", tools=[TOOL]).prompt


def test_versions_and_betas_in_headers_are_taken() -> None:
    headers = {
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        "anthropic-beta": "a-2024-01-01,b-2025-01-01",
    }
    assert call(make_app(answering("ok")), PATH, body(), headers=headers).status == 200


def test_system_comes_first_as_text_or_blocks() -> None:
    assert prompt(USER, system="be kind").messages == (
        said("system", "be kind"),
        said("user", "hi"),
    )
    blocks = [text("be kind"), text("and brief")]
    assert prompt(USER, system=blocks).messages[0] == said("system", "be kind", "and brief")


def test_a_line_that_differs_at_every_request_does_not_begin_the_prompt() -> None:
    blocks = [text("x-anthropic-billing-header: cc_version=1; cch=ab12;"), text("be kind")]
    assert prompt(USER, system=blocks).messages[0] == said("system", "be kind")
    assert prompt(USER, system=blocks[:1]).messages == (said("user", "hi"),)


def test_system_turns_keep_their_place() -> None:
    turns = [USER, {"role": "system", "content": "now in French"}]
    assert prompt(*turns).messages == (said("user", "hi"), said("system", "now in French"))


def test_b028_all_blocks_of_text_are_read() -> None:
    assert prompt(user(text("AAA"), text(""), text("BBB"))).messages == (
        said("user", "AAA", "BBB"),
    )


def test_turns_of_one_role_in_a_row_are_one() -> None:
    messages = prompt(
        USER, user(text("there")), assistant(text("a")), assistant(text("b"), CALLED), user(RESULT)
    ).messages
    assert messages[0] == said("user", "hi", "there")
    assert messages[1].content == (TextPart("a"), TextPart("b"))
    assert len(messages[1].tool_calls) == 1
    assert len(messages) == 3


def test_b098_images_by_data_and_url_keep_their_places() -> None:
    by_url = {"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}
    (message,) = prompt(user(IMAGE, text("and"), {**by_url, **CACHED})).messages
    assert message.content == (
        ImagePart("data:image/png;base64,AA==", "messages.0.content.0.source"),
        TextPart("and"),
        ImagePart("https://a.b/c.png", "messages.0.content.2.source"),
    )


def test_b026_b033_calls_and_results_of_the_history() -> None:
    second = {**CALLED, "id": "toolu_2", "input": {}}
    messages = prompt(
        USER,
        assistant(text("I look."), CALLED, second),
        user({**RESULT, "content": "nothing"}, {**RESULT, "tool_use_id": "toolu_2"}, text("So?")),
    ).messages
    assert messages[1:] == (
        ChatMessage(
            "assistant",
            (TextPart("I look."),),
            tool_calls=(
                ToolCall("toolu_1", "look", {"place": "here"}),
                ToolCall("toolu_2", "look", {}),
            ),
        ),
        ChatMessage("tool", (TextPart("nothing"),), name="look", tool_call_id="toolu_1"),
        ChatMessage("tool", (), name="look", tool_call_id="toolu_2"),
        said("user", "So?"),
    )


def test_b032_results_in_blocks_and_errors() -> None:
    blocks = [text("42.69"), text("EUR")]
    failed = {**RESULT, "content": [text("no such place"), text("look elsewhere")]}
    messages = prompt(
        USER,
        assistant(CALLED),
        user(
            {**RESULT, "content": blocks},
            {**failed, "is_error": True},
            {**RESULT, "is_error": True},
            {**failed, "is_error": False},
        ),
    ).messages
    assert [message.content for message in messages[2:]] == [
        (TextPart("42.69"), TextPart("EUR")),
        (TextPart("Error: no such place"), TextPart("look elsewhere")),
        (TextPart("Error: "),),
        (TextPart("no such place"), TextPart("look elsewhere")),
    ]


def test_pictures_of_results_are_shown_by_the_user_behind_them() -> None:
    messages = prompt(
        USER,
        assistant(CALLED),
        user(
            {**RESULT, "content": [IMAGE]}, {**RESULT, "content": [text("a"), IMAGE]}, text("So?")
        ),
    ).messages
    pictures = [
        ImagePart("data:image/png;base64,AA==", f"messages.2.content.{place}.source")
        for place in ("0.content.0", "1.content.1")
    ]
    assert [message.role for message in messages[2:]] == ["tool", "tool", "user"]
    assert all(message.content for message in messages[2:])
    assert messages[3].content == (TextPart("a"),)
    assert messages[4].content == (*pictures, TextPart("So?"))


def test_b093_thoughts_of_the_history_are_kept_as_thoughts() -> None:
    thought = {"type": "thinking", "thinking": "I see.", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "EmwKAhgB"}
    empty = {"type": "thinking", "thinking": "", "signature": "x"}
    messages = prompt(USER, assistant(thought, redacted, text("so")), USER).messages
    assert messages[1].reasoning_content == "I see."
    assert messages[1].content == (TextPart("so"),)
    assert prompt(USER, assistant(empty, text("so")), USER).messages[1].reasoning_content is None


def test_an_answer_that_was_begun_goes_on() -> None:
    found = prompt(USER, assistant(text("The best answer"), text(" is (")))
    assert found.messages == (said("user", "hi"),)
    assert found.prefill == "The best answer is ("
    assert found.template_kwargs == {"enable_thinking": False}
    assert prompt(USER, {"role": "assistant", "content": ""}).prefill == ""


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "`thinking`"),
        ({"thinking": {"type": "adaptive"}}, "`thinking`"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "`output_config.format`",
        ),
        ({"output_format": {"type": "json_schema", "schema": SCHEMA}}, "`output_format`"),
    ],
)
def test_what_would_come_before_the_begun_answer_is_refused(fields: Body, word: str) -> None:
    assert word in refused(messages=[USER, assistant(text("("))], **fields)


def test_an_answer_cannot_go_on_from_a_call_or_a_thought() -> None:
    assert "messages.1.content.0" in refused(messages=[USER, assistant(CALLED)], tools=[TOOL])
    thought = {"type": "thinking", "thinking": "x", "signature": ""}
    assert "messages.1.content.0" in refused(messages=[USER, assistant(thought)])


def test_a_conversation_begins_with_a_user() -> None:
    assert "`messages`" in refused(messages=[assistant(text("hi"))])


def test_tools_are_shown_as_templates_know_them() -> None:
    function = {
        "name": "look",
        "description": "Look there.",
        "parameters": TOOL["input_schema"],
    }
    assert prompt(USER, tools=[TOOL]).tools == ({"type": "function", "function": function},)
    (strict,) = prompt(USER, tools=[{**TOOL, "strict": True}]).tools
    assert strict["function"]["strict"] is True


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(is_parallel=False)),
        ({"type": "any"}, ToolChoice("required")),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            ToolChoice("required", is_parallel=False),
        ),
        ({"type": "tool", "name": "look"}, ToolChoice("named", "look")),
    ],
)
def test_the_choice_of_tools_reaches_the_engine(choice: Body, wanted: ToolChoice) -> None:
    assert asked(tools=[TOOL], tool_choice=choice).tool_choice == wanted


def test_b050_without_a_choice_the_tools_are_not_shown() -> None:
    assert prompt(USER, tools=[TOOL], tool_choice={"type": "none"}).tools == ()


def test_a_choice_needs_the_tools_it_names() -> None:
    assert "`tools`" in refused(tool_choice={"type": "any"})
    message = refused(tools=[TOOL], tool_choice={"type": "tool", "name": "secret"})
    assert "`tool_choice.name`" in message
    assert "secret" not in message
    assert "`tool_choice.name`" in refused(tools=[TOOL], tool_choice={"type": "tool"})


def test_b090_thinking_is_switched_and_bounded() -> None:
    enabled = asked(thinking={"type": "enabled", "budget_tokens": 2048})
    assert enabled.thinking_budget == 2048
    adaptive = asked(thinking={"type": "adaptive"}, output_config={"effort": "high"})
    assert adaptive.thinking_budget is None
    kwargs = [
        prompt(USER, thinking=thinking).template_kwargs
        for thinking in ({"type": "enabled", "budget_tokens": 1}, {"type": "disabled"}, None)
    ]
    assert kwargs == [{"enable_thinking": True}, {"enable_thinking": False}, {}]
    assert prompt(
        USER, thinking={"type": "adaptive"}, output_config={"effort": "high"}
    ).template_kwargs == {"enable_thinking": True, "reasoning_effort": "high"}


def test_switches_of_the_template_can_be_given_as_for_chats() -> None:
    assert prompt(USER, chat_template_kwargs={"a": 1}).template_kwargs == {"a": 1}


def test_the_form_of_the_answer_reaches_the_engine() -> None:
    wanted = {"type": "json_schema", "schema": SCHEMA}
    assert asked(output_config={"format": wanted}).response_format == ResponseFormat(
        "json_schema", SCHEMA, "output_config.format"
    )
    assert asked(output_format=wanted).response_format == ResponseFormat(
        "json_schema", SCHEMA, "output_format"
    )
