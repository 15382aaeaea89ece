"""What must hold at the server's border for any text of a model and any body of a client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scripted import Script
from tests.scripted_server import CHAT, Body, Served, chat_body, scripted_server
from tests.test_parsers_properties import BITS, json_values

COMPLETIONS = "/v1/completions"
FIELDS = {
    CHAT: [
        "model",
        "messages",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "n",
        "stop",
        "max_completion_tokens",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "presence_penalty",
        "tools",
        "tool_choice",
        "frequency_penalty",
        "repetition_penalty",
        "parallel_tool_calls",
        "response_format",
        "modalities",
        "user",
        "chat_template_kwargs",
        "metadata",
        "store",
        "reasoning_effort",
        "functions",
        "function_call",
        "audio",
    ],
    COMPLETIONS: [
        "model",
        "prompt",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "max_tokens",
        "n",
        "stop",
        "logprobs",
        "echo",
        "best_of",
        "suffix",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "user",
    ],
}
BASES: dict[str, Body] = {CHAT: chat_body(), COMPLETIONS: {"prompt": "hi"}}
PARTS = ("role", "content", "tool_calls", "tool_call_id", "name", "type", "text", "image_url")
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "", None)
TOOL: Body = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}},
}

odd_values = json_values | st.sampled_from([-1, 0, 1, 2, 1e300, 1 << 70, "auto", "\ud800", [[]]])
odd_messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(ROLES)},
        optional={
            "content": odd_values
            | st.lists(st.dictionaries(st.sampled_from(PARTS), odd_values, max_size=3), max_size=3),
            "tool_calls": odd_values,
            "tool_call_id": odd_values,
        },
    ),
    max_size=4,
)
slow = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def script() -> Script:
    script = Script()
    script.say("fine")
    return script


@pytest.fixture(scope="module")
def served(script: Script, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with scripted_server(tmp_path_factory.mktemp("api"), m=script) as served:
        yield served


@st.composite
def odd_bodies(draw: Any, path: str) -> Body:
    """One that would be served, with a few fields that may not be what they should."""
    names = draw(st.lists(st.sampled_from(FIELDS[path]), max_size=4, unique=True))
    body = BASES[path] | {name: draw(odd_values) for name in names}
    if path == CHAT and draw(st.booleans()):
        body["messages"] = draw(odd_messages)
    return body


def check_refusal(status: int, body: Any) -> None:
    assert 400 <= status < 500
    assert sorted(body["error"]) == ["code", "message", "param", "type"]


@pytest.mark.parametrize("path", sorted(FIELDS))
@slow
@given(data=st.data())
def test_no_body_however_odd_is_a_5xx_or_the_end_of_the_server(
    served: Served, script: Script, path: str, data: Any
) -> None:
    script.say_only("fine")
    body = data.draw(odd_bodies(path), label="body")
    answer = served.client.post(
        path, content=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    if answer.status_code != 200:
        check_refusal(answer.status_code, answer.json())
    assert served.chat()["choices"][0]["message"]["content"] == "fine"


@slow
@given(content=st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_bytes_that_are_no_body_are_a_400(served: Served, content: bytes) -> None:
    answer = served.client.post(CHAT, content=content, headers={"content-type": "application/json"})
    check_refusal(answer.status_code, answer.json())


@slow
@given(text=st.lists(st.sampled_from(BITS["json_tools"]), max_size=12).map("".join))
def test_a_stream_says_what_the_whole_answer_says_and_both_may_be_history(
    served: Served, script: Script, text: str
) -> None:
    script.say_only(text)
    asked: Body = {"tools": [TOOL], "stream_options": {"include_usage": True}}
    choice = (whole := served.chat(tools=[TOOL]))["choices"][0]
    stream = served.stream(**asked)
    message = choice["message"]
    assert stream.content == (message["content"] or "")
    assert stream.finish_reasons == [choice["finish_reason"]]
    assert stream.usage is not None
    assert stream.usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    calls = [known["function"] for known in message.get("tool_calls") or ()]
    streamed = [stream.tool_calls[i] for i in sorted(stream.tool_calls)]
    assert [(c["name"], c["arguments"]) for c in calls] == [
        (c["name"], c["arguments"]) for c in streamed
    ]
    served.chat(messages=[*chat_body()["messages"], *history(message)], tools=[TOOL])


def history(message: Body) -> list[Body]:
    """The answer as it came, and what tools say to its calls."""
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        for call in message.get("tool_calls") or ()
    ]
    return [message, *results, {"role": "user", "content": "go on"}]
