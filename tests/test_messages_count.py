"""How many tokens a message's prompt has, without an answer."""

from __future__ import annotations

import pytest

from mlx_server.engine.sequence import PromptOnly, PromptTokens
from mlx_server.errors import InvalidRequest
from tests.asgi_client import Answer, call, make_app
from tests.fake_engine import FakeEngine
from tests.messages_requests import TOOL, USER, Body, asked, messages_error

PATH = "/v1/messages/count_tokens"
COUNTED = PromptTokens("org/fake", 4096, "hi", (1, 2, 3))
FIELDS: Body = {"model": "fake", "messages": [USER], "system": "be kind", "tools": [TOOL]}


def count(engine: FakeEngine, **fields: object) -> Answer:
    return call(make_app(engine), PATH, {**FIELDS, **fields})


def test_the_prompt_of_the_message_is_counted() -> None:
    engine = FakeEngine([COUNTED])

    answer = count(engine, thinking={"type": "enabled", "budget_tokens": 1024})

    assert (answer.status, answer.json) == (200, {"input_tokens": 3})
    (request,) = engine.requests
    assert request.only_prepare == PromptOnly()
    thinking = {"type": "enabled", "budget_tokens": 1024}
    assert request.prompt == asked(**FIELDS, thinking=thinking).prompt


def test_what_only_an_answer_needs_may_stand_there() -> None:
    assert count(FakeEngine([COUNTED]), max_tokens=5, stream=True).status == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"tools": [{**TOOL, "type": "bash_20250124"}]}, "tools.0.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ],
)
def test_what_a_message_may_not_hold_is_refused(fields: Body, param: str) -> None:
    answer = count(FakeEngine([COUNTED]), **fields)
    assert answer.status == 400
    assert f"`{param}`" in messages_error(answer)["message"]


def test_a_refusal_by_the_engine_has_the_shape() -> None:
    answer = count(FakeEngine([InvalidRequest("Say it otherwise.")]))
    assert (answer.status, messages_error(answer)["type"]) == (400, "invalid_request_error")
