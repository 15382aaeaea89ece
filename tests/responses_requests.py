"""Requests to /v1/responses of a server with a fake engine, and how its streams are read."""

from __future__ import annotations

import json
from typing import Any

from mlx_server.engine.sequence import ChatMessage, ChatPrompt, GenerationRequest
from tests.asgi_client import call, make_app
from tests.fake_engine import answering

PATH = "/v1/responses"
IMAGE = "data:image/png;base64,AA=="
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "f",
    "description": "Does it.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": True,
}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
USER_HI = {"role": "user", "content": "hi"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def asked(**fields: Any) -> GenerationRequest:
    engine = answering("ok")
    answer = call(make_app(engine), PATH, {"input": "hi", **fields})
    assert answer.status == 200, answer.body
    (request,) = engine.requests
    return request


def prompt(*items: Any, **fields: Any) -> ChatPrompt:
    request = asked(**({"input": list(items)} if items else {}), **fields)
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def messages(*items: Any, **fields: Any) -> tuple[ChatMessage, ...]:
    return prompt(*items, **fields).messages


def refused(**fields: Any) -> dict[str, Any]:
    engine = answering("ok")
    answer = call(make_app(engine), PATH, {"input": "hi", **fields})
    assert answer.status == 400, answer.body
    assert not engine.requests
    assert answer.error["type"] == "invalid_request_error"
    return answer.error


def events_of(body: bytes) -> list[dict[str, Any]]:
    """The events of a stream, which must be named and numbered as the API wants it."""
    frames = body.decode().split("\n\n")
    assert frames.pop() == ""
    events = []
    for frame in frames:
        if not frame.startswith(":"):
            name, data = frame.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]
