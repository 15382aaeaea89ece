"""Reported faults of servers like this one, replayed through the whole server: what is taken in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import EngineConfig
from tests.oneapi_client import Connection, channel_test, passthrough
from tests.scripted import Script, make_tokenizer
from tests.scripted_server import CHAT, Body, Served, prompt_of, scripted_server
from tests.tiny.templates import NO_SYSTEM


@pytest.fixture
def script() -> Script:
    script = Script()
    script.say("fine")
    return script


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, m=script) as served:
        yield served


def refused(served: Served, body: Any, status: int = 400) -> Body:
    """The error object of a request that must be refused in the one shape."""
    answer = served.client.post(CHAT, json=body)
    assert answer.status_code == status, answer.text
    error: Body = answer.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["type"] == "invalid_request_error"
    return error


def message(**fields: Any) -> Body:
    return {"role": "user", "content": "hi", **fields}


def test_b001_chunked_body_without_length_is_served(served: Served) -> None:
    payload = {"messages": [message()]}
    with Connection(served.address) as connection:
        answer = connection.ask(passthrough(CHAT, payload))
    assert answer.status == 200
    assert answer.json["choices"][0]["message"]["content"] == "fine"


def test_router_s_channel_test_passes(served: Served) -> None:
    with Connection(served.address) as connection:
        answer = connection.ask(channel_test("m"))
    assert answer.status == 200
    assert isinstance(answer.json["choices"][0]["message"]["content"], str)
    assert isinstance(answer.json["created"], int)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": message()}, "messages"),
        ({"messages": [message()], "temperature": "hot"}, "temperature"),
        ({"message": [message()]}, "messages"),
        ({}, "messages"),
        ([1], None),
    ],
    ids=["object", "temperature", "singular", "nothing", "list"],
)
def test_b013_what_is_wrong_is_a_400_that_names_the_field(
    served: Served, body: Any, param: str | None
) -> None:
    assert refused(served, body)["param"] == param


def test_b013_an_empty_body_is_a_400(served: Served) -> None:
    answer = served.client.post(CHAT, content=b"")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] is None


@pytest.mark.parametrize("stream", [False, True])
def test_b014_unknown_model_is_a_404_and_the_loaded_one_stays(served: Served, stream: bool) -> None:
    served.chat()
    error = refused(
        served, {"messages": [message()], "model": "no/such-model", "stream": stream}, 404
    )
    assert error["code"] == "model_not_found"
    assert served.chat()["model"] == "m"
    assert served.loader.loads == ["m"]


@pytest.mark.parametrize("stream", [False, True])
def test_b016_prompt_past_the_context_is_a_400_with_both_numbers(
    script: Script, tmp_path: Path, stream: bool
) -> None:
    with scripted_server(
        tmp_path, engine_config=EngineConfig(context_length=64), m=script
    ) as served:
        error = refused(served, {"messages": [message(content="x" * 100)], "stream": stream})
    assert error["code"] == "context_length_exceeded"
    assert "64" in error["message"]
    assert any(
        int(word) > 100 for word in error["message"].replace(".", " ").split() if word.isdigit()
    )


def test_b016_nor_does_a_stream_begin_while_another_of_its_prompts_may_be_too_long(
    script: Script, tmp_path: Path
) -> None:
    script.token_s = 0.01
    script.say_only("x" * 50)
    config = EngineConfig(context_length=64)
    with scripted_server(tmp_path, engine_config=config, m=script) as served:
        body = {"prompt": ["a", "b", "c" * 100], "stream": True}
        answer = served.client.post("/v1/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "context_length_exceeded"
        stream = served.stream("/v1/completions", prompt=["a", "b"], max_tokens=3)
        assert stream.is_done


def test_b020_sampling_out_of_range_is_a_400_that_names_the_field(served: Served) -> None:
    for field, value in [
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_k", -5),
        ("repetition_penalty", -1),
        ("presence_penalty", 9),
        ("n", 0),
    ]:
        assert refused(served, {"messages": [message()], field: value})["param"] == field
    served.chat(temperature=0, top_p=0)
    served.chat(top_p=1, top_k=0)


def test_b024_system_text_reaches_a_template_without_a_system_role(tmp_path: Path) -> None:
    script = Script(tokenizer=make_tokenizer(NO_SYSTEM))
    script.say("fine")
    with scripted_server(tmp_path, m=script) as served:
        body = served.chat(
            messages=[{"role": "system", "content": "Be brief"}, message(content="hi there")]
        )
        alone = served.chat(messages=[message(content="hi there")])
    more = body["usage"]["prompt_tokens"] - alone["usage"]["prompt_tokens"]
    assert more == len("Be brief\n")


HISTORY = [
    message(content="2+3?"),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "add", "arguments": '{"a":2,"b":3}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "5"},
]


def test_b026_absent_content_beside_calls_renders_the_call_and_its_result(served: Served) -> None:
    without = [HISTORY[0], {k: v for k, v in HISTORY[1].items() if k != "content"}, HISTORY[2]]
    for messages in (HISTORY, without):
        prompt = prompt_of(served, messages)
        assert '"name": "add", "arguments": {"a": 2, "b": 3}' in prompt
        assert "<tool_response>\n5\n</tool_response>" in prompt
        assert "None" not in prompt


def test_b028_all_text_parts_reach_the_prompt_in_order(served: Served) -> None:
    parts = [{"type": "text", "text": "AAA"}, {"type": "text", "text": "BBB"}]
    prompt = prompt_of(served, [message(content=parts)])
    assert 0 < prompt.index("AAA") < prompt.index("BBB")


def test_b030_developer_is_the_system_role(served: Served) -> None:
    prompt = prompt_of(served, [{"role": "developer", "content": "Be brief"}, message()])
    assert prompt.startswith("<|im_start|>system\nBe brief<|im_end|>")


def test_b032_tool_result_in_parts_is_rendered_as_its_text(served: Served) -> None:
    result = {**HISTORY[2], "content": [{"type": "text", "text": "42.69"}]}
    assert "<tool_response>\n42.69\n" in prompt_of(served, [*HISTORY[:2], result])


def test_b033_arguments_may_be_a_string_or_an_object(served: Served) -> None:
    call = HISTORY[1]["tool_calls"][0]
    as_object = {**call, "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
    messages = [HISTORY[0], {**HISTORY[1], "tool_calls": [as_object]}, HISTORY[2]]
    assert prompt_of(served, messages) == prompt_of(served, HISTORY)


def test_calls_and_results_in_their_deprecated_form_are_read(served: Served) -> None:
    messages = [
        HISTORY[0],
        {"role": "assistant", "function_call": {"name": "add", "arguments": '{"a":2,"b":3}'}},
        {"role": "function", "name": "add", "content": "5"},
    ]
    prompt = prompt_of(served, messages)
    assert '"name": "add", "arguments": {"a": 2, "b": 3}' in prompt
    assert "<tool_response>\n5\n</tool_response>" in prompt


def test_b035_nulls_are_the_same_as_absent_fields(served: Served) -> None:
    names = (
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n"),
        *("stream", "tools", "logprobs", "top_logprobs", "user", "response_format", "logit_bias"),
    )
    with_nulls = served.chat(**dict.fromkeys(names))
    without = served.chat()
    assert with_nulls["choices"] == without["choices"]


def test_b037_unknown_and_harmless_fields_are_no_reason_to_refuse(served: Served) -> None:
    stream = served.stream(
        user="u",
        stream_options={"include_usage": True},
        store=False,
        metadata={},
        service_tier="auto",
        parallel_tool_calls=True,
        foo=1,
    )
    assert stream.content == "fine"


def test_b039_whole_floats_are_integers(served: Served) -> None:
    served.chat(max_tokens=100.0, temperature=1, seed=42.0, top_k=20.0)
    assert refused(served, {"messages": [message()], "max_tokens": 6000.5})["param"] == "max_tokens"


def test_b004_half_a_surrogate_pair_is_replaced(served: Served) -> None:
    for body in (
        rb'{"messages":[{"role":"user","content":"a\ud800b"}]}',
        rb'{"messages":[{"role":"user","content":"a\ud800b"}],"stream":true}',
    ):
        answer = served.client.post(
            CHAT, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 200
        assert "fine" in answer.text


def test_b008_unknown_paths_are_404_in_the_one_shape(served: Served) -> None:
    answer = served.client.post("/v1/nonsense", json={})
    assert answer.status_code == 404
    assert sorted(answer.json()["error"]) == ["code", "message", "param", "type"]
    assert served.client.post("/chat/completions", json={"messages": [message()]}).is_success
    for path in ("/v1//models", "/v1/models/"):
        assert served.client.get(path).status_code in (200, 404)


def test_b068_usage_has_openai_s_names_in_both_modes(served: Served) -> None:
    usage = served.chat()["usage"]
    streamed = served.stream(stream_options={"include_usage": True}).usage
    assert streamed is not None
    for found in (usage, streamed):
        assert isinstance(found["prompt_tokens_details"]["cached_tokens"], int)
        assert found["completion_tokens"] == 2
    assert usage["prompt_tokens"] == streamed["prompt_tokens"]


def test_invariant_what_was_answered_can_be_sent_back(served: Served, script: Script) -> None:
    call = '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>'
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    script.say(call)
    served.chat()
    answer = served.chat(tools=[tool])["choices"][0]["message"]
    assert answer["tool_calls"]
    result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "1"}
    served.chat(messages=[message(), answer, result], tools=[tool])


@pytest.mark.parametrize("fields", [{"logprobs": 2, "max_tokens": 2}, {"echo": True}])
def test_b044_completions_take_logprobs_and_echo(served: Served, fields: Body) -> None:
    answer = served.client.post("/v1/completions", json={"prompt": "abc", **fields})
    assert answer.status_code == 200
    choice = answer.json()["choices"][0]
    if "echo" in fields:
        assert choice["text"] == "abcfine"
    else:
        lengths = {len(choice["logprobs"][k]) for k in choice["logprobs"]}
        assert lengths == {1}, "the end token has no text and no entry"


def test_completions_take_token_ids_and_several_prompts(served: Served) -> None:
    for prompt, num_choices in [
        ("abc", 1),
        (["abc", "def"], 2),
        ([100, 101, 102], 1),
        ([[100], [101, 102]], 2),
        ("", 1),
    ]:
        answer = served.client.post("/v1/completions", json={"prompt": prompt})
        assert [c["text"] for c in answer.json()["choices"]] == ["fine"] * num_choices
    answer = served.client.post("/v1/completions", json={"prompt": [99_999_999]})
    assert answer.status_code == 400


def test_b045_same_seed_same_text_whatever_ran_between(served: Served) -> None:
    # the script's two best tokens lie 10 apart, so at this temperature both are drawn
    hot = {"temperature": 2.0, "logit_bias": {str(3 + ord("q")): 18.0}, "max_tokens": 12}
    first = served.chat(seed=1, **hot)["choices"][0]["message"]
    served.chat(seed=2, **hot)
    assert served.chat(seed=1, **hot)["choices"][0]["message"] == first


def test_b047_n_gives_that_many_choices(served: Served) -> None:
    body = served.chat(n=3)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 6
    stream = served.stream(n=3)
    assert sorted(
        f["choices"][0]["index"] for f in stream.frames if f["choices"][0]["finish_reason"]
    ) == [0, 1, 2]


def test_image_for_a_model_without_eyes_names_the_part(served: Served) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = refused(served, {"messages": [message(content=[{"type": "text", "text": "x"}, part])]})
    assert error["param"].startswith("messages.0.content.1")


def test_default_limit_of_the_operator_ends_an_answer(script: Script, tmp_path: Path) -> None:
    config = replace(EngineConfig(), default_max_tokens=1)
    with scripted_server(tmp_path, engine_config=config, m=script) as served:
        body = served.chat()
        assert body["choices"][0]["finish_reason"] == "length"
        assert served.chat(max_tokens=5)["choices"][0]["finish_reason"] == "stop"


def test_chat_template_kwargs_may_not_reach_the_rendering_itself(served: Served) -> None:
    for name in ("chat_template", "tokenize", "tools"):
        error = refused(served, {"messages": [message()], "chat_template_kwargs": {name: "x"}})
        assert error["param"] == "chat_template_kwargs"
    served.chat(chat_template_kwargs={"enable_thinking": False})
