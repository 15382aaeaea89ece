"""Messages requests that are sent to a server with a fake engine, and what comes of them."""

from __future__ import annotations

import json
from typing import Any

from mlx_server.engine.sequence import ChatPrompt, GenerationRequest
from tests.asgi_client import Answer, call, make_app
from tests.fake_engine import FakeEngine, answering

PATH = "/v1/messages"
Body = dict[str, Any]
USER: Body = {"role": "user", "content": "hi"}
TOOL: Body = {
    "name": "look",
    "description": "Look there.",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}
PNG: Body = {"type": "base64", "media_type": "image/png", "data": "AA=="}
IMAGE: Body = {"type": "image", "source": PNG}
CACHED: Body = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SCHEMA: Body = {"type": "object", "properties": {"a": {"type": "integer"}}}
CALLED: Body = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"place": "here"}}
RESULT: Body = {"type": "tool_result", "tool_use_id": "toolu_1"}
CALL = '<tool_call>{"name":"look","arguments":{"place":"here"}}</tool_call>'


def text(words: str, **fields: Any) -> Body:
    return {"type": "text", "text": words, **fields}


def user(*blocks: Body) -> Body:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Body) -> Body:
    return {"role": "assistant", "content": list(blocks)}


def body(**fields: Any) -> Body:
    return {"model": "fake", "max_tokens": 100, "messages": [USER], **fields}


def post(engine: FakeEngine, **fields: Any) -> Answer:
    return call(make_app(engine), PATH, body(**fields))


def asked(**fields: Any) -> GenerationRequest:
    engine = answering("ok")
    answer = post(engine, **fields)
    assert answer.status == 200, answer.body
    (request,) = engine.requests
    return request


def prompt(*messages: Body, **fields: Any) -> ChatPrompt:
    request = asked(messages=list(messages), **fields)
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt


def refused(**fields: Any) -> str:
    """The message of a refusal, before the engine hears of the request."""
    engine = answering("ok")
    answer = post(engine, **fields)
    assert answer.status == 400, answer.body
    assert not engine.requests
    error = messages_error(answer)
    assert error["type"] == "invalid_request_error"
    message: str = error["message"]
    return message


def messages_error(answer: Answer) -> Body:
    """The error of an answer, which has the shape of Anthropic's and nothing else."""
    found = answer.json
    assert set(found) == {"type", "error", "request_id"}
    assert found["type"] == "error"
    error: Body = found["error"]
    assert set(error) == {"type", "message"}
    return error


def message(engine: FakeEngine, **fields: Any) -> Body:
    answer = post(engine, **fields)
    assert answer.status == 200, answer.body
    found: Body = answer.json
    return found


def stream(engine: FakeEngine, **fields: Any) -> list[Body]:
    answer = post(engine, stream=True, **fields)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer.body)


def events(content: bytes) -> list[Body]:
    """The events of a stream, each of which must have the name of its type."""
    frames = content.decode().split("\n\n")
    assert frames.pop() == ""
    found = []
    for frame in frames:
        if frame.startswith(": "):
            continue
        name, data = frame.split("\n")
        event: Body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def joined(found: list[Body]) -> list[Body]:
    """The blocks that the events make, as a client puts them together; checks their order."""
    blocks: list[Body] = []
    arguments = ""
    is_open = False
    for event in found:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append(dict(event["content_block"]))
            is_open, arguments = True, ""
        elif event["type"] == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
            elif delta["type"] == "signature_delta":
                blocks[-1]["signature"] = delta["signature"]
            else:
                name = delta["type"].removesuffix("_delta")
                blocks[-1][name] += delta[name]
        elif event["type"] == "content_block_stop":
            assert is_open
            assert event["index"] == len(blocks) - 1
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments)
    assert not is_open
    return blocks
