"""OpenAI's own Python client against our responses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from mlx_server.engine.sequence import Delta, Progress
from mlx_server.errors import GenerationFailed
from tests.asgi_client import run
from tests.fake_engine import FakeEngine, answering, deltas, started
from tests.patience import HANG_S
from tests.responses_requests import TOOL
from tests.scripted import Script
from tests.scripted_server import Served, scripted_server
from tests.test_api_clients import client_of

WEATHER = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
TOOLS: Any = [TOOL]


class City(BaseModel):
    name: str
    size: int


def test_a_stream_is_put_together() -> None:
    async def work() -> Any:
        engine = answering("why</think>", "Hel", "lo", reasoning_format="think", is_reasoning=True)
        async with (
            client_of(engine) as client,
            client.responses.stream(model="fake", input="hi") as stream,
        ):
            types = [event.type async for event in stream]
            return types, await stream.get_final_response()

    types, response = run(work())

    assert types[-1] == "response.completed"
    assert response.output_text == "Hello"
    assert response.output[0].content[0].text == "why"
    assert response.usage.output_tokens_details.reasoning_tokens == 1


def test_a_streamed_call_is_put_together() -> None:
    async def work() -> Any:
        script = [Progress("prefill", 1, 2), started(tool_format="json_tools"), *deltas(WEATHER)]
        async with (
            client_of(FakeEngine(script), heartbeat_s=0.0) as client,
            client.responses.stream(model="fake", input="hi", tools=TOOLS) as stream,
        ):
            return await stream.get_final_response()

    (item,) = run(work()).output

    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "f", {"a": 1})


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_is_parsed_into_a_model(stream: bool) -> None:
    engine = answering('{"name": "Paris",', ' "size": 2}')

    async def work() -> Any:
        async with client_of(engine) as client:
            if not stream:
                return await client.responses.parse(model="fake", input="hi", text_format=City)
            async with client.responses.stream(
                model="fake", input="hi", text_format=City
            ) as events:
                return await events.get_final_response()

    assert run(work()).output_parsed == City(name="Paris", size=2)
    form = engine.requests[0].response_format
    assert form is not None
    assert form.value["properties"].keys() == {"name", "size"}


def test_an_error_after_a_comment_is_raised() -> None:
    async def work() -> None:
        script = [*[Progress("prefill")] * 3, GenerationFailed("It broke.")]
        async with client_of(FakeEngine(script), heartbeat_s=0.0) as client:
            with pytest.raises(openai.APIError, match="It broke"):
                stream = await client.responses.create(model="fake", input="hi", stream=True)
                async for _ in stream:
                    pass

    run(work())


def test_a_failure_in_the_stream_is_an_event() -> None:
    async def work() -> Any:
        script = [started(), Delta(0, "a", 1), GenerationFailed("It broke.")]
        async with client_of(FakeEngine(script)) as client:
            stream = await client.responses.create(model="fake", input="hi", stream=True)
            return [event async for event in stream]

    *_, last = run(work())

    assert last.type == "response.failed"
    assert last.response.error.message == "It broke."


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, m=script) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    base = str(served.client.base_url.join("/v1"))
    with openai.OpenAI(base_url=base, api_key="none", max_retries=0, timeout=HANG_S) as client:
        yield client


def test_a_conversation_with_tools_goes_on_by_ids(client: openai.OpenAI, script: Script) -> None:
    script.say_bytes(f"I look. {WEATHER}")
    script.say("It is ", "one.")
    first = client.responses.create(model="m", input="hi", instructions="Look.", tools=TOOLS)
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}

    second = client.responses.create(
        model="m", input=[result], previous_response_id=first.id, tools=TOOLS
    )

    assert second.output_text == "It is one."
    assert client.responses.retrieve(second.id).output_text == second.output_text
    (listed,) = client.responses.input_items.list(second.id)
    assert listed.type == "function_call_output"
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_a_conversation_with_tools_goes_on_without_a_store(
    client: openai.OpenAI, script: Script
) -> None:
    script.say(WEATHER)
    script.say("One.")
    history: list[Any] = [{"role": "user", "content": "hi"}]
    first = client.responses.create(model="m", input=history, tools=TOOLS, store=False)
    for item in first.output:
        history.append(item.to_dict())
        if item.type == "function_call":
            history.append({"type": "function_call_output", "call_id": item.call_id, "output": "1"})

    second = client.responses.create(model="m", input=history, tools=TOOLS, store=False)

    assert second.output_text == "One."


def test_an_answer_that_was_cut_says_so(client: openai.OpenAI, script: Script) -> None:
    script.say("a", "b", "c", "d")

    response = client.responses.create(model="m", input="hi", max_output_tokens=2)

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == "ab"


def test_errors_become_the_clients_own_exceptions(client: openai.OpenAI, script: Script) -> None:
    script.say("a")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="m", input="hi", background=True)
    assert refused.value.param == "background"
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="no/such", input="hi")
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_x")
