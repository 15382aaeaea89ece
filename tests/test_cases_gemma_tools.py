"""Tools for Gemma 3, whose template knows none, through the whole server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted import Script, make_tokenizer
from tests.scripted_server import Body, Served, prompt_of, scripted_server
from tests.tiny.templates import GEMMA3

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALLS = """```tool_code
get_weather(city="Paris", days=3)
get_weather("Tokyo")
```"""


@pytest.fixture
def script() -> Script:
    return Script(tokenizer=make_tokenizer(GEMMA3), model_type="gemma3_text")


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, m=script) as served:
        yield served


def arguments(calls: list[Body]) -> list[Body]:
    return [json.loads(call["function"]["arguments"]) for call in calls]


def test_calls_in_code_are_read_and_not_run(served: Served, script: Script) -> None:
    script.say("I look. ", *CALLS)
    choice = served.chat(tools=[WEATHER])["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"].strip() == "I look."
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather"] * 2
    assert arguments(calls) == [{"city": "Paris", "days": 3}, {"city": "Tokyo"}]


def test_calls_in_code_are_streamed(served: Served, script: Script) -> None:
    script.say(*CALLS)
    stream = served.stream(tools=[WEATHER])
    assert stream.finish_reasons == ["tool_calls"]
    assert json.loads(stream.tool_calls[1]["arguments"]) == {"city": "Tokyo"}
    assert stream.content == ""


@pytest.mark.parametrize(
    "block", ["```tool_code\nimport os\n```", "```tool_code\nget_weather(city=\n```"]
)
def test_code_that_is_no_call_comes_back_as_content(
    served: Served, script: Script, block: str
) -> None:
    script.say(*block)
    choice = served.chat(tools=[WEATHER])["choices"][0]
    assert choice["message"]["content"] == block
    assert choice["finish_reason"] == "stop"


def test_tools_and_their_results_reach_a_template_that_knows_none(
    served: Served, script: Script
) -> None:
    script.say("fine")
    call = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    prompt = prompt_of(
        served,
        [
            {"role": "system", "content": "Be brief"},
            {"role": "user", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny, 25 degrees"},
        ],
        tools=[WEATHER],
    )
    assert "def get_weather(city: str" in prompt
    assert "Be brief" in prompt
    assert 'get_weather(city="Paris")' in prompt.replace("'", '"')
    assert "sunny, 25 degrees" in prompt
    assert "None" not in prompt
