"""Anthropic's own Python client against our answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest

from mlx_server.engine.sequence import Delta, FinishReason, GenerationRequest, Progress
from mlx_server.errors import EngineOverloaded, GenerationFailed
from tests.asgi_client import make_app, run
from tests.fake_engine import FakeEngine, answering, deltas, started
from tests.messages_requests import CALL, TOOL, USER

ASKED: Any = {"model": "fake", "max_tokens": 100, "messages": [USER]}


@asynccontextmanager
async def client_of(engine: FakeEngine, **config: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    transport = httpx2.ASGITransport(app=make_app(engine, **config))
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        anthropic.AsyncAnthropic(
            base_url="http://server", api_key="none", http_client=http, max_retries=0
        ) as client,
    ):
        yield client


def create(engine: FakeEngine, **fields: Any) -> anthropic.types.Message:
    async def work() -> anthropic.types.Message:
        async with client_of(engine) as client:
            message: anthropic.types.Message = await client.messages.create(**{**ASKED, **fields})
            return message

    return run(work())


def stream(engine: FakeEngine, **fields: Any) -> anthropic.types.Message:
    async def work() -> anthropic.types.Message:
        async with (
            client_of(engine, heartbeat_s=0.0) as client,
            client.messages.stream(**{**ASKED, **fields}) as events,
        ):
            return await events.get_final_message()

    return run(work())


@pytest.mark.parametrize("ask", [create, stream])
def test_an_answer_is_read(ask: Any) -> None:
    message = ask(answering("Hel", "lo"))

    assert [block.text for block in message.content] == ["Hello"]
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens == 4
    assert message.usage.cache_read_input_tokens == 3
    assert message.usage.output_tokens == 2


@pytest.mark.parametrize("ask", [create, stream])
def test_b009_a_call_after_a_slow_prefill_is_one_call_and_its_result_goes_back(ask: Any) -> None:
    script = [Progress("prefill", 1, 2), started(tool_format="json_tools"), *deltas(CALL)]
    engine = FakeEngine(script)
    message = ask(engine, tools=[TOOL])

    (call,) = message.content
    assert (call.type, call.name, call.input) == ("tool_use", "look", {"place": "here"})
    assert message.stop_reason == "tool_use"

    result = {"type": "tool_result", "tool_use_id": call.id, "content": "nothing"}
    turns = [
        USER,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    ask(engine, tools=[TOOL], messages=turns)

    back = messages_of(engine.requests[-1])
    assert back[1].tool_calls[0].id == back[2].tool_call_id == call.id
    assert back[1].tool_calls[0].arguments == {"place": "here"}


def messages_of(request: GenerationRequest) -> Any:
    return request.prompt.messages  # type: ignore[union-attr]


@pytest.mark.parametrize("ask", [create, stream])
def test_the_stop_sequence_is_told(ask: Any) -> None:
    end = Delta(0, "a", 1, finish_reason=FinishReason.STOP, stop="END")
    message = ask(FakeEngine([started(), end]), stop_sequences=["END"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")


def test_b018_a_failure_in_the_stream_is_raised() -> None:
    async def work() -> str:
        text = ""
        script = [started(), Delta(0, "a", 1), *[Progress("prefill")] * 3]
        engine = FakeEngine([*script, GenerationFailed("It broke.")])
        async with client_of(engine, heartbeat_s=0.0) as client:
            with pytest.raises(anthropic.APIStatusError, match="It broke"):
                async with client.messages.stream(**ASKED) as events:
                    async for piece in events.text_stream:
                        text += piece
        return text

    assert run(work()) == "a"


def test_errors_become_the_clients_own_exceptions() -> None:
    async def work() -> None:
        async with client_of(answering()) as client:
            with pytest.raises(anthropic.BadRequestError) as invalid:
                await client.messages.create(**{**ASKED, "messages": []})
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(**{**ASKED, "model": "none"})
        assert "`messages`" in invalid.value.message
        async with client_of(FakeEngine([EngineOverloaded("Full.")])) as client:
            with pytest.raises(anthropic.InternalServerError) as full:
                await client.messages.create(**ASKED)
        assert full.value.status_code == 529

    run(work())
