"""OpenAI's own Python client against our answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest

from mlx_server.engine.sequence import Delta, Progress
from mlx_server.errors import EngineOverloaded, GenerationFailed
from tests.asgi_client import make_app, run
from tests.fake_engine import FakeEngine, answering, deltas, started

MESSAGES: Any = [{"role": "user", "content": "hi"}]
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'


@asynccontextmanager
async def client_of(engine: FakeEngine, **config: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    transport = httpx2.ASGITransport(app=make_app(engine, **config))
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(
            base_url="http://server/v1", api_key="none", http_client=http, max_retries=0
        ) as client,
    ):
        yield client


def test_whole_answer_is_read() -> None:
    async def work() -> Any:
        async with client_of(answering("Hel", "lo")) as client:
            return await client.chat.completions.create(model="fake", messages=MESSAGES)

    answer = run(work())

    assert answer.choices[0].message.content == "Hello"
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_b009_a_call_after_a_slow_prefill_is_one_call_for_the_client() -> None:
    async def work() -> Any:
        script = [Progress("prefill", 1, 2), started(tool_format="json_tools"), *deltas(CALL)]
        async with (
            client_of(FakeEngine(script), heartbeat_s=0.0) as client,
            client.chat.completions.stream(model="fake", messages=MESSAGES, tools=TOOLS) as stream,
        ):
            return await stream.get_final_completion()

    (choice,) = run(work()).choices

    (tool_call,) = choice.message.tool_calls
    assert tool_call.function.name == "f"
    assert tool_call.function.arguments == '{"a":1}'
    assert choice.finish_reason == "tool_calls"


def test_b018_a_failure_in_the_stream_is_raised() -> None:
    async def work() -> str:
        text = ""
        script = [started(), Delta(0, "a", 1), *[Progress("prefill")] * 3]
        engine = FakeEngine([*script, GenerationFailed("It broke.")])
        async with client_of(engine, heartbeat_s=0.0) as client:
            stream = await client.chat.completions.create(
                model="fake", messages=MESSAGES, stream=True
            )
            with pytest.raises(openai.APIError, match="It broke"):
                async for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
        return text

    assert run(work()) == "a"


def test_errors_become_the_clients_own_exceptions() -> None:
    async def work() -> None:
        async with client_of(answering()) as client:
            with pytest.raises(openai.BadRequestError) as invalid:
                await client.chat.completions.create(model="fake", messages=[])
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="none", messages=MESSAGES)
        assert invalid.value.param == "messages"
        async with client_of(FakeEngine([EngineOverloaded("Full.")])) as client:
            with pytest.raises(openai.RateLimitError):
                await client.chat.completions.create(model="fake", messages=MESSAGES)

    run(work())


def test_completions_and_models_are_read() -> None:
    async def work() -> tuple[str, list[str]]:
        async with client_of(answering(" upon")) as client:
            completion = await client.completions.create(model="fake", prompt="Once", echo=True)
            models = [model.id async for model in client.models.list()]
            assert (await client.models.retrieve("org/fake")).id == "org/fake"
            return completion.choices[0].text, models

    assert run(work()) == ("Once upon", ["org/fake"])
