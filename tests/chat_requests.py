"""Chats that are sent to a server with a fake engine, and what that engine was asked for."""

from __future__ import annotations

from typing import Any

from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
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
