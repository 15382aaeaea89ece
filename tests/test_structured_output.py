"""Models of random weights, which would write anything, are held to what is asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.sequence import (
    ChatPrompt,
    FinishReason,
    ResponseFormat,
    SamplingParams,
    Sequence,
    ToolChoice,
)
from mlx_server.errors import InvalidRequest, UnsupportedParameter
from mlx_server.parsers.answer import Answer
from mlx_server.parsers.output import OutputParser
from tests.engine_runs import GREEDY, make_runner, make_sequence, run, run_alone, run_together, user

Load = Callable[[str], LoadedModel]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome", "Köln"]},
        "is_big": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["city", "is_big", "tags"],
    "additionalProperties": False,
}
ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"sign": {"enum": ["plus", "minus"]}},
            "required": ["sign"],
            "additionalProperties": False,
        },
    },
}
NOW: dict[str, Any] = {
    "type": "function",
    "function": {"name": "now", "parameters": {**SCHEMA, "required": [], "properties": {}}},
}


def hot(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.5, seed=seed)


def ask(text: str = "where?", *, tools: tuple[Any, ...] = (), **fields: Any) -> Sequence:
    prompt = ChatPrompt((user(text),), tools)
    return make_sequence(prompt, **{"max_tokens": 600, "top_logprobs": None, **fields})


@pytest.fixture
def llama(load_tiny: Load) -> LoadedModel:
    return load_tiny("llama")


@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_window_8"])
def test_a_schema_holds_greedy_and_hot_rows_of_one_batch(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    wanted = ResponseFormat("json_schema", SCHEMA)
    held = [
        ask(response_format=wanted, sampling=s, max_tokens=1500)
        for s in (GREEDY, hot(1), hot(2), hot(3))
    ]
    free = ask("and you?", max_tokens=40)
    answers = run_together(make_runner(loaded), [*held, free])
    for sequence in held:
        assert answers[sequence].finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(answers[sequence].text), SCHEMA)
    assert answers[free].text == run_alone(loaded, ask("and you?", max_tokens=40)).text


@pytest.mark.parametrize(
    ("wanted", "pattern"),
    [
        (ResponseFormat("regex", r"[0-9]{2}/[a-f]{3}"), r"[0-9]{2}/[a-f]{3}"),
        (ResponseFormat("choice", ["yes", "no", 'per"haps']), r'yes|no|per"haps'),
        (ResponseFormat("lark", 'start: word "!" word\nword: /[ab]{1,4}/'), r"[ab]{1,4}![ab]{1,4}"),
    ],
)
def test_other_forms_hold_as_well(llama: LoadedModel, wanted: ResponseFormat, pattern: str) -> None:
    for seed in range(4):
        answer = run(make_runner(llama), ask(response_format=wanted, sampling=hot(seed)))
        assert re.fullmatch(pattern, answer.text), answer.text
        assert answer.finish_reason is FinishReason.STOP


def test_the_second_answer_of_a_prompt_is_held_like_the_first(llama: LoadedModel) -> None:
    runner = make_runner(llama)
    first = ask(response_format=ResponseFormat("choice", ["aaa", "bbb"]), sampling=hot(1), n=2)
    runner.prepare(first)
    second = Sequence(
        -1, first.request, 1, "m", seed=2, deadline=first.deadline, prompt=first.prompt
    )
    answers = run_together(runner, [first, second])
    assert {answer.text for answer in answers.values()} <= {"aaa", "bbb"}


def calls_of(loaded: LoadedModel, sequence: Sequence) -> Answer:
    parser = OutputParser(loaded.tool_format, [ADD, NOW])
    answer = Answer()
    answer.add([*parser.feed(run(make_runner(loaded), sequence).text), *parser.finish()])
    answer.finish()
    return answer


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_required_call_is_made_and_fits_its_schema(load_tiny: Load, name: str) -> None:
    loaded = load_tiny(name)
    for seed in range(4):
        choice = ToolChoice("required", is_parallel=False)
        answer = calls_of(loaded, ask(tools=(ADD, NOW), tool_choice=choice, sampling=hot(seed)))
        assert answer.content is None
        (call,) = answer.tool_calls
        schema = {"add": ADD, "now": NOW}[call.name]["function"]["parameters"]
        jsonschema.validate(json.loads(call.arguments), schema)


def test_a_named_call_is_that_one(llama: LoadedModel) -> None:
    for name in ("add", "now"):
        choice = ToolChoice("named", name, is_parallel=False)
        answer = calls_of(llama, ask(tools=(ADD, NOW), tool_choice=choice, sampling=hot(5)))
        assert [call.name for call in answer.tool_calls] == [name]


def test_with_tools_and_a_format_the_answer_is_either(llama: LoadedModel) -> None:
    wanted = ResponseFormat("choice", ["done"])
    texts = set()
    for seed in range(12):
        sequence = ask(tools=(NOW,), response_format=wanted, sampling=hot(seed))
        answer = calls_of(llama, sequence)
        texts.add(answer.content)
        assert answer.content == "done" or {call.name for call in answer.tool_calls} == {"now"}
    assert texts


@pytest.mark.parametrize(
    "wanted",
    [
        ResponseFormat("json_schema", {"type": "objec"}, "a.b"),
        ResponseFormat("json_schema", {"$ref": "http://127.0.0.1:9/x"}, "a.b"),
        ResponseFormat("regex", "(a", "a.b"),
        ResponseFormat("lark", "start: nothing", "a.b"),
    ],
)
def test_what_cannot_be_enforced_is_refused_before_the_prompt_runs(
    llama: LoadedModel, wanted: ResponseFormat
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make_runner(llama).prepare(ask(response_format=wanted))
    assert refused.value.param == "a.b"


def test_a_strict_tool_of_a_broken_schema_is_refused_and_another_takes_any_object(
    llama: LoadedModel,
) -> None:
    function = {"name": "f", "parameters": {"properties": {"a": {"type": "objec"}}}}
    choice = ToolChoice("required", is_parallel=False)
    tool = {"type": "function", "function": function}
    make_runner(llama).prepare(ask(tools=(tool,), tool_choice=choice))
    strict = {"type": "function", "function": {**function, "strict": True}}
    with pytest.raises(InvalidRequest) as refused:
        make_runner(llama).prepare(ask(tools=(strict,), tool_choice=choice))
    assert refused.value.param == "tools"


def test_a_budget_for_thinking_needs_a_model_that_tells_it_apart(llama: LoadedModel) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        make_runner(llama).prepare(ask(thinking_budget=3))
    assert refused.value.param == "thinking_budget"
