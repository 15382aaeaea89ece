"""What a Responses request asks of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.api.responses import NEUTRAL_VALUES
from mlx_server.engine.sequence import (
    ChatMessage,
    ImagePart,
    ResponseFormat,
    SamplingParams,
    TextPart,
    ToolCall,
    ToolChoice,
)
from mlx_server.responses_wire import ResponsesRequest
from tests.responses_requests import (
    CALL,
    IMAGE,
    RESULT,
    TOOL,
    asked,
    messages,
    prompt,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = {"role": "user", "content": "hi"}


def text(role: Any, *texts: str, **fields: Any) -> ChatMessage:
    return ChatMessage(role, tuple(map(TextPart, texts)), **fields)


def test_a_text_is_a_message_of_the_user() -> None:
    assert messages() == (text("user", "hi"),)


def test_instructions_come_first() -> None:
    assert messages(USER, instructions="Be kind.") == (
        text("system", "Be kind."),
        text("user", "hi"),
    )


def test_instructions_and_the_system_messages_behind_them_are_one() -> None:
    items = [{"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, USER]

    assert messages(*items, instructions="c") == (
        text("system", "c", "a", "b"),
        text("user", "hi"),
    )


def test_later_system_messages_stay_where_they_are() -> None:
    items = [USER, {"role": "system", "content": "b"}]

    assert messages(*items, instructions="c")[2] == text("system", "b")


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "user", "content": "hi"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "user",
            "content": [{"type": "input_text", "text": "hi", "annotations": []}],
        },
    ],
    ids=["easy", "typed", "parts", "full"],
)
def test_every_form_of_a_message_is_read(item: Any) -> None:
    assert messages(item) == (text("user", "hi"),)


def test_output_of_the_model_comes_back_as_it_was_given() -> None:
    answer = {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
    }
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}

    assert messages(USER, answer, USER, refusal, USER)[1::2] == (
        text("assistant", "a"),
        text("assistant", "no"),
    )


def test_images_come_by_url_or_as_data() -> None:
    part = {"type": "input_image", "image_url": IMAGE, "detail": "low"}
    content = [{"type": "input_text", "text": "see"}, part]

    (message,) = messages({"role": "user", "content": content})

    assert message.content == (TextPart("see"), ImagePart(IMAGE, "input.0.content.1.image_url"))


def test_what_a_model_wrote_in_one_go_is_one_message() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "why"}],
    }
    said = {"role": "assistant", "content": "I look."}
    second = {**CALL, "call_id": "c2"}

    assert messages(USER, thought, said, CALL, second, RESULT)[1] == text(
        "assistant",
        "I look.",
        reasoning_content="why",
        tool_calls=(ToolCall("c1", "f", {"a": 1}), ToolCall("c2", "f", {"a": 1})),
    )


def test_two_answers_in_a_row_stay_two() -> None:
    items = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]

    assert messages(*items) == (text("assistant", "a"), text("assistant", "b"))


def test_a_summary_stands_in_for_reasoning_that_is_not_told() -> None:
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "short"}],
        "encrypted_content": "xx",
    }

    (message,) = messages(thought, {"role": "assistant", "content": "a"})

    assert message.reasoning_content == "short"


@pytest.mark.parametrize("output", ["done", [{"type": "input_text", "text": "done"}]])
def test_b032_the_result_of_a_call_is_text_or_parts(output: Any) -> None:
    assert messages(USER, CALL, {**RESULT, "output": output})[2] == text(
        "tool", "done", name="f", tool_call_id="c1"
    )


def test_pictures_in_a_result_go_to_the_users_next_message() -> None:
    picture = {"type": "input_image", "image_url": IMAGE}

    found = messages(USER, CALL, {**RESULT, "output": [picture]}, USER)

    image = ImagePart(IMAGE, "input.2.output.0.image_url")
    assert found[2:] == (
        text("tool", "The picture follows.", name="f", tool_call_id="c1"),
        ChatMessage("user", (image, TextPart("hi"))),
    )
    assert messages(USER, CALL, {**RESULT, "output": [picture]})[3].content == (image,)


@pytest.mark.parametrize("arguments", ["", "{", '{"a": 1'])
def test_b033_arguments_that_are_no_json_are_still_taken(arguments: str) -> None:
    (call_message,) = messages({**CALL, "arguments": arguments})

    assert call_message.tool_calls[0].name == "f"


def test_a_call_that_broke_off_is_no_part_of_the_history() -> None:
    broken = {**CALL, "status": "incomplete", "arguments": '{"a'}

    assert messages(USER, broken, USER) == (text("user", "hi"), text("user", "hi"))


def test_tools_reach_the_template_in_the_form_it_knows() -> None:
    function = {name: value for name, value in TOOL.items() if name != "type"}

    assert prompt(tools=[TOOL]).tools == ({"type": "function", "function": function},)


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("auto", ToolChoice(), ["f", "g"]),
        ("none", ToolChoice(), []),
        ("required", ToolChoice("required"), ["f", "g"]),
        ({"type": "function", "name": "g"}, ToolChoice("named", "g"), ["f", "g"]),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "g"}],
            },
            ToolChoice("required"),
            ["g"],
        ),
    ],
    ids=["auto", "none", "required", "named", "allowed"],
)
def test_b050_tool_choice(choice: Any, expected: ToolChoice, names: list[str]) -> None:
    request = asked(tools=[TOOL, {**TOOL, "name": "g"}], tool_choice=choice)

    assert request.tool_choice == expected
    tools = getattr(request.prompt, "tools", ())
    assert [tool["function"]["name"] for tool in tools] == names


def test_one_call_at_most() -> None:
    assert asked(tools=[TOOL], parallel_tool_calls=False).tool_choice == ToolChoice(
        is_parallel=False
    )


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, ResponseFormat("json_schema", {"type": "object"}, "text.format")),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
            ResponseFormat("json_schema", SCHEMA, "text.format.schema"),
        ),
    ],
    ids=["text", "object", "schema"],
)
def test_b048_the_form_of_the_answer(form: Any, expected: ResponseFormat | None) -> None:
    assert asked(text={"format": form, "verbosity": "medium"}).response_format == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
        (
            {"reasoning": {"effort": "none"}},
            {"reasoning_effort": "none", "enable_thinking": False},
        ),
        ({"enable_thinking": True}, {"enable_thinking": True}),
        ({"chat_template_kwargs": {"x": 1}}, {"x": 1}),
        ({"reasoning": {}}, {}),
    ],
)
def test_how_much_to_think_is_the_templates(fields: Any, expected: Any) -> None:
    assert prompt(**fields).template_kwargs == expected


def test_sampling_and_limits() -> None:
    request = asked(
        temperature=0.5, top_p=0.9, top_k=3, seed=7, max_output_tokens=20, stop="x", model="fake"
    )

    assert request.sampling == SamplingParams(temperature=0.5, top_p=0.9, top_k=3, seed=7)
    assert (request.max_tokens, request.stop, request.model) == (20, ("x",), "fake")
    assert request.request_id.startswith("resp_")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"top_logprobs": 3}, 3),
        ({"top_logprobs": 2, "include": ["message.output_text.logprobs"]}, 2),
        ({"include": ["reasoning.encrypted_content"]}, None),
    ],
)
def test_logprobs_are_asked_for_by_number_or_by_name(fields: Any, expected: int | None) -> None:
    assert asked(**fields).top_logprobs == expected


def test_b035_nulls_stand_for_what_is_left_out() -> None:
    nulls = dict.fromkeys(ResponsesRequest.model_fields.keys() - {"input"})

    assert asked(**nulls).sampling == SamplingParams()


def test_b039_whole_numbers_may_be_written_as_floats() -> None:
    assert asked(max_output_tokens=20.0).max_tokens == 20


def test_no_field_is_taken_in_silence() -> None:
    """Whoever adds a field to those that all requests share must say here what becomes of it."""
    sampling = {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "stop",
    }
    prompt_fields = {
        "input",
        "instructions",
        "previous_response_id",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "reasoning",
        "chat_template_kwargs",
        "enable_thinking",
    }
    answer_fields = {
        "model",
        "text",
        "max_output_tokens",
        "top_logprobs",
        "include",
        "stream",
        "stream_options",
        "store",
    }
    echoed = {
        "metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }

    known = ResponsesRequest.model_fields.keys() - NEUTRAL_VALUES.keys()

    assert known == sampling | prompt_fields | answer_fields | echoed
