"""The OpenAI Python SDK against the whole server on a real port."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.pictures import data_url, png
from tests.scripted import Script
from tests.scripted_server import Served, scripted_server
from tests.tiny.checkpoints import tiny_gemma3
from tests.tiny_server import tiny_server

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, m=script) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with sdk(served) as client:
        yield client


def sdk(served: Served) -> openai.OpenAI:
    host, port = served.address
    return openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="none", max_retries=0)


def user(text: str) -> Any:
    return {"role": "user", "content": text}


def test_chat(client: openai.OpenAI, script: Script) -> None:
    script.say("Hello", " there")
    answer = client.chat.completions.create(model="m", messages=[user("hi")])
    assert answer.choices[0].message.content == "Hello there"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None


def test_stream(client: openai.OpenAI, script: Script) -> None:
    script.say("Hello", " there")
    chunks = list(
        client.chat.completions.create(
            model="m", messages=[user("hi")], stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Hello there"
    assert chunks[-1].usage is not None


def test_stream_that_fails_raises(client: openai.OpenAI, script: Script) -> None:
    script.say("a", "b", RuntimeError("boom"))
    with pytest.raises(openai.APIError):
        list(client.chat.completions.create(model="m", messages=[user("hi")], stream=True))


def test_tool_round_trip(client: openai.OpenAI, script: Script) -> None:
    script.say(*CALL)
    script.say("It is sunny.")
    messages = [user("What is the weather in Paris?")]
    first = client.chat.completions.create(model="m", messages=messages, tools=[WEATHER])
    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    assert message.tool_calls is not None
    call: Any = message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    second = client.chat.completions.create(
        model="m", messages=[*messages, message, result], tools=[WEATHER]
    )
    assert second.choices[0].message.content == "It is sunny."


def test_tool_call_in_a_stream(client: openai.OpenAI, script: Script) -> None:
    script.say(*CALL)
    with client.chat.completions.stream(
        model="m", messages=[user("weather?")], tools=[WEATHER]
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "weather"
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}


def test_completion(client: openai.OpenAI, script: Script) -> None:
    script.say("one", " two")
    answer = client.completions.create(model="m", prompt="count", logprobs=1)
    assert answer.choices[0].text == "one two"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["one", " two"]


def test_models(client: openai.OpenAI) -> None:
    ids = {model.id for model in client.models.list()}
    assert "m" in ids
    assert client.models.retrieve("m").id == "m"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no/such-model")


def test_errors_have_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no/such-model", messages=[user("hi")])
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="m", messages=[user("hi")], temperature=-1)
    assert refused.value.param == "temperature"


def test_vision(tmp_path: Path) -> None:
    picture: Any = {"type": "image_url", "image_url": {"url": data_url(png("red"))}}
    content: Any = [{"type": "text", "text": "What is this?"}, picture]
    with tiny_server(tiny_gemma3(tmp_path / "m")) as served, sdk(served) as client:
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": content}], max_tokens=4
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
