"""Every kind of answer, against OpenAI's own schema of it."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import ValidationError

from mlx_server.engine.sequence import Progress, TokenLogprob
from mlx_server.errors import EngineOverloaded, GenerationFailed
from tests.asgi_client import call, make_app
from tests.fake_engine import FakeEngine, answering, deltas, started
from tests.openapi_schema import check

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
CALL = ('I look. <tool_call>{"name":"f","arg', 'uments":{"a":1}}</tool_call>')
LOGPROB = TokenLogprob("hé", "hé".encode(), -0.5, (TokenLogprob("hé", "hé".encode(), -0.5),))


def with_logprobs() -> FakeEngine:
    return FakeEngine([started(), *deltas("hé", "hé", logprobs=[LOGPROB, LOGPROB])])


CHATS = [
    pytest.param(answering("Hel", "lo"), {}, id="text"),
    pytest.param(answering(*CALL, tool_format="json_tools"), TOOLS, id="tool-call"),
    pytest.param(with_logprobs(), {"logprobs": True, "top_logprobs": 1}, id="logprobs"),
    pytest.param(
        FakeEngine([Progress("queued", 0, 1), started(), *deltas("a"), *deltas("b", index=1)]),
        {"n": 2},
        id="n",
    ),
]


@pytest.mark.parametrize(("engine", "fields"), CHATS)
def test_chat_completion_matches_the_schema(engine: FakeEngine, fields: dict[str, Any]) -> None:
    answer = call(make_app(engine), "/v1/chat/completions", {**CHAT, **fields})

    assert answer.status == 200
    check("CreateChatCompletionResponse", answer.json)


@pytest.mark.parametrize(("engine", "fields"), CHATS)
def test_chat_chunks_match_the_schema(engine: FakeEngine, fields: dict[str, Any]) -> None:
    answer = call(make_app(engine), "/v1/chat/completions", {**CHAT, **STREAM, **fields})

    assert len(answer.chunks) > 3
    for chunk in answer.chunks:
        check("CreateChatCompletionStreamResponse", chunk)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1}, {"n": 1, "echo": False, "best_of": 1}])
def test_completion_matches_the_schema(fields: dict[str, Any]) -> None:
    answer = call(make_app(with_logprobs()), "/v1/completions", {"prompt": "hi", **fields})

    assert answer.status == 200
    check("CreateCompletionResponse", answer.json)


def test_completion_chunks_match_the_schema_but_for_the_open_finish_reason() -> None:
    body = {"prompt": "hi", **STREAM, "logprobs": 1}

    answer = call(make_app(with_logprobs()), "/v1/completions", body)

    for chunk in answer.chunks:
        # The published schema knows whole completions only; chunks have nulls until the end.
        choices = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in chunk["choices"]]
        present = {key: value for key, value in chunk.items() if value is not None}
        check("CreateCompletionResponse", {**present, "choices": choices})


def test_models_match_the_schema() -> None:
    app = make_app(answering())

    check("ListModelsResponse", call(app, "/v1/models").json)
    check("Model", call(app, "/v1/models/org/fake").json)


@pytest.mark.parametrize(
    ("engine", "body"),
    [
        pytest.param(answering(), {"messages": 1}, id="400"),
        pytest.param(answering(), {**CHAT, "model": "none"}, id="404"),
        pytest.param(FakeEngine([EngineOverloaded("full")]), CHAT, id="429"),
        pytest.param(FakeEngine([GenerationFailed("broken")]), CHAT, id="500"),
    ],
)
def test_errors_match_the_schema(engine: FakeEngine, body: dict[str, Any]) -> None:
    answer = call(make_app(engine), "/v1/chat/completions", body)

    assert answer.status >= 400
    check("ErrorResponse", answer.json)


def test_the_check_itself_can_fail() -> None:
    answer = call(make_app(answering("a")), "/v1/chat/completions", CHAT).json

    with pytest.raises(ValidationError):
        check("CreateChatCompletionResponse", {**answer, "created": 1.5})
