"""What the engine is asked for beside messages, by what a client sent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    SamplingParams,
    TextPart,
)
from tests.chat_requests import USER, asked, prompt, refused


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


def test_b037_fields_that_ask_for_nothing_special_are_accepted() -> None:
    request = asked(
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
    assert replace(request, request_id="r") == replace(asked(), request_id="r")


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
        (
            {"reasoning_effort": "none", "enable_thinking": True},
            {"reasoning_effort": "none", "enable_thinking": True},
        ),
        (
            {"reasoning_effort": "minimal", "enable_thinking": False},
            {"reasoning_effort": "minimal", "enable_thinking": False},
        ),
        ({"thinking": {"type": "enabled"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": False},
        ),
        ({"chat_template_kwargs": {"documents": []}}, {"documents": []}),
    ],
)
def test_b090_template_switches_are_passed_on(
    fields: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    assert prompt(USER, **fields).template_kwargs == kwargs


@pytest.mark.parametrize("model", ["fake", "org/fake", ""])
def test_b118_the_model_is_passed_on_as_named(model: str) -> None:
    assert asked(model=model).model == model


TOOL = {"type": "function", "function": {"name": "f"}}
TEXT_PART = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("fields", "param", "maximum"),
    [
        ({"messages": [USER] * 10_001}, "messages", 10_000),
        (
            {"messages": [{"role": "user", "content": [TEXT_PART] * 10_001}]},
            "messages.0.content",
            10_000,
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [TOOL] * 10_001}]},
            "messages.0.tool_calls",
            10_000,
        ),
        ({"tools": [TOOL] * 10_001}, "tools", 10_000),
        ({"chat_template_kwargs": {str(i): i for i in range(1001)}}, "chat_template_kwargs", 1000),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lists_longer_than_any_context_are_refused(
    fields: dict[str, Any], param: str, maximum: int
) -> None:
    error = refused(**fields)

    assert error["param"] == param
    assert error["message"].startswith(f"`{param}` may have at most {maximum} entries.")


def test_parts_past_the_longest_list_are_not_looked_at() -> None:
    content = [*[TEXT_PART] * 10_001, "no part"]

    error = refused(messages=[{"role": "user", "content": content}])

    assert error["param"] == "messages.0.content"
