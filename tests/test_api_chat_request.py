"""What the engine is asked for, by what a client sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    SamplingParams,
    TextPart,
    ToolCall,
)
from tests.asgi_client import call, make_app
from tests.fake_engine import answering

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
IMAGE = "data:image/png;base64,AA=="


def asked(**fields: Any) -> GenerationRequest:
    engine = answering("ok")
    answer = call(make_app(engine), PATH, {"messages": [USER], **fields})
    assert answer.status == 200, answer.body
    (request,) = engine.requests
    return request


def prompt(*messages: Any, **fields: Any) -> ChatPrompt:
    request = asked(messages=list(messages), **fields)
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def message(sent: dict[str, Any]) -> ChatMessage:
    return prompt(sent, USER).messages[0]


def refused(**fields: Any) -> dict[str, Any]:
    engine = answering("ok")
    answer = call(make_app(engine), PATH, {"messages": [USER], **fields})
    assert answer.status == 400, answer.body
    assert not engine.requests
    assert answer.error["type"] == "invalid_request_error"
    return answer.error


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


def test_sampling_parameters_reach_the_engine() -> None:
    request = asked(
        temperature=1,
        top_p=0.5,
        top_k=20.0,
        min_p=0.1,
        seed=42.0,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "6": 1.5},
    )

    assert request.sampling == SamplingParams(
        temperature=1.0,
        top_p=0.5,
        top_k=20,
        min_p=0.1,
        seed=42,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        logit_bias={5: -100.0, 6: 1.5},
    )
    assert type(request.sampling.top_k) is int
    assert type(request.sampling.seed) is int


OPTIONALS = (
    "temperature top_p top_k min_p max_tokens max_completion_tokens stop seed n stream tools "
    "tool_choice logprobs top_logprobs user response_format logit_bias stream_options store "
    "presence_penalty frequency_penalty repetition_penalty parallel_tool_calls audio functions "
    "function_call chat_template_kwargs enable_thinking reasoning_effort metadata model verbosity"
)


def test_b035_nulls_are_the_same_as_absence() -> None:
    request = asked(**dict.fromkeys(OPTIONALS.split()))

    assert request == GenerationRequest(
        request.request_id, None, ChatPrompt((ChatMessage("user", (TextPart("hi"),)),))
    )


def test_nulls_inside_messages_and_tools_are_absence() -> None:
    tool = {"type": "function", "function": {"name": "f", "description": None, "strict": None}}
    names = ("name", "tool_calls", "tool_call_id", "refusal", "audio", "function_call")

    read = prompt({**USER, **dict.fromkeys(names)}, tools=[tool])

    assert read.messages == (ChatMessage("user", (TextPart("hi"),)),)
    assert read.tools == ({"type": "function", "function": {"name": "f"}},)


def test_b037_fields_that_ask_for_nothing_special_are_accepted() -> None:
    asked(
        user="u",
        stream_options={"include_usage": True},
        store=False,
        metadata={},
        service_tier="auto",
        parallel_tool_calls=True,
        foo=1,
        modalities=["text"],
        response_format={"type": "text"},
        safety_identifier="s",
        prompt_cache_key="k",
        verbosity="medium",
        function_call="none",
        functions=[],
        tool_choice="auto",
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "yaml"}),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("parallel_tool_calls", False),
        ("audio", {"voice": "x", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("web_search_options", {}),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("store", True),
        ("service_tier", "flex"),
        ("verbosity", "low"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})

    assert error["code"] == "unsupported_parameter"
    assert error["param"] == field
    assert f"`{field}`" in error["message"]


def test_obfuscation_of_streams_is_refused_by_name() -> None:
    error = refused(stream=True, stream_options={"include_obfuscation": True})

    assert error["param"] == "stream_options.include_obfuscation"


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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.5),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.5),
        ("top_k", -5),
        ("top_k", 1.5),
        ("min_p", -0.1),
        ("presence_penalty", 9),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", -1),
        ("repetition_penalty", 0),
        ("n", 0),
        ("n", 129),
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 6000.5),
        ("max_completion_tokens", 0),
        ("seed", "x"),
        ("seed", 1.5),
        ("stop", 5),
        ("stop", ["a", 1]),
        ("stop", [str(i) for i in range(17)]),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", [1]),
        ("logprobs", 3),
        ("top_logprobs", 2),
        ("stream", "yes"),
        ("messages", []),
        ("messages", [USER] * 10_001),
        ("messages", {"role": "user", "content": "hi"}),
        ("tools", {}),
        ("chat_template_kwargs", []),
        ("model", 5),
    ],
)
def test_b020_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    error = refused(**{field: value})

    assert error["param"] == field
    assert f"`{field}`" in error["message"]


def test_top_logprobs_above_twenty_are_refused() -> None:
    assert refused(logprobs=True, top_logprobs=21)["param"] == "top_logprobs"


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


@pytest.mark.parametrize(
    ("sent", "seed"),
    [
        (18446744073709552000, 384),
        (2.0**64, 0),
        (2**64 + 5, 5),
        (-1, 2**64 - 1),
        (0, 0),
        (42.0, 42),
    ],
)
def test_seeds_of_any_size_are_taken_modulo_64_bits(sent: float, seed: int) -> None:
    assert asked(seed=sent).sampling.seed == seed


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_tokens": 5, "max_completion_tokens": 9}, 9),
        ({"max_tokens": 100.0}, 100),
        ({"max_tokens": 100000000}, 100000000),
        ({}, None),
    ],
)
def test_b040_the_newer_name_of_the_limit_wins(fields: dict[str, Any], limit: int | None) -> None:
    assert asked(**fields).max_tokens == limit


@pytest.mark.parametrize(
    ("sent", "stop"),
    [
        ("STOP", ("STOP",)),
        (["STOP"], ("STOP",)),
        ([], ()),
        ("", ()),
        (None, ()),
        (["", "a"], ("a",)),
    ],
)
def test_b052_stop_is_a_string_or_a_list_and_never_empty(sent: Any, stop: tuple[str, ...]) -> None:
    assert asked(stop=sent).stop == stop


@pytest.mark.parametrize(("sent", "top_k"), [(0, 0), (-1, 0), (5, 5)])
def test_top_k_is_off_at_zero_and_minus_one(sent: int, top_k: int) -> None:
    assert asked(top_k=sent).sampling.top_k == top_k


@pytest.mark.parametrize(
    ("fields", "top_logprobs"),
    [
        ({"logprobs": True, "top_logprobs": 2}, 2),
        ({"logprobs": True}, 0),
        ({"logprobs": False}, None),
        ({"top_logprobs": 0}, None),
    ],
)
def test_b043_logprobs_are_asked_for(fields: dict[str, Any], top_logprobs: int | None) -> None:
    assert asked(**fields).top_logprobs == top_logprobs


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"chat_template_kwargs": {"documents": []}}, {"documents": []}),
    ],
)
def test_b090_template_switches_are_passed_on(
    fields: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    assert prompt(USER, **fields).template_kwargs == kwargs


def test_tools_reach_the_template_as_they_were_sent() -> None:
    function = {
        "strict": True,
        "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
        "name": "f",
    }

    (tool,) = prompt(USER, tools=[{"type": "function", "function": function}]).tools

    assert json.dumps(tool) == json.dumps({"type": "function", "function": function})


@pytest.mark.parametrize("model", ["fake", "org/fake", ""])
def test_b118_the_model_is_passed_on_as_named(model: str) -> None:
    assert asked(model=model).model == model
