"""Prompts without an answer: what is asked of the engine, and in which shape its tokens leave."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.engine.sequence import (
    ChatPrompt,
    GenerationRequest,
    ImagePart,
    Prepared,
    Progress,
    PromptOnly,
    PromptTokens,
    RawPrompt,
)
from mlx_server.errors import EngineOverloaded, GenerationFailed, InvalidRequest
from tests.asgi_client import Answer, Call, call, make_app, run
from tests.fake_engine import MODEL, FakeEngine, until_steps

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
COUNT = "/v1/chat/completions/input_tokens"
PATHS = [
    ("/tokenize", {"prompt": "hi"}),
    ("/tokenize", CHAT),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", CHAT),
    ("/chat/completions/input_tokens", CHAT),
    ("/responses/input_tokens", {"input": "hi"}),
]


def knowing(**fields: Any) -> FakeEngine:
    """An engine whose every prompt is these three tokens."""
    tokens = PromptTokens(MODEL, 4096, "<hi>", (5, 6, 7))
    return FakeEngine([Progress("queued", 0, 1), tokens], **fields)


def asked_by(path: str, **fields: Any) -> GenerationRequest:
    engine = knowing()
    answer = call(make_app(engine), path, fields)
    assert answer.status == 200, answer.body
    (request,) = engine.requests
    return request


def ask(path: str, engine: FakeEngine | None = None, **fields: Any) -> Answer:
    return call(make_app(engine or knowing()), path, fields)


def test_tokenize_answers_in_vllm_s_shape() -> None:
    answer = ask("/tokenize", prompt="hi")
    assert answer.json == {"tokens": [5, 6, 7], "count": 3, "max_model_len": 4096}


def test_tokenize_gives_the_texts_of_tokens_if_they_are_asked_for() -> None:
    tokens = PromptTokens(MODEL, 4096, "hi", (5, 6), ("h", "i"))
    answer = ask("/tokenize", FakeEngine([tokens]), prompt="hi", return_token_strs=True)
    assert answer.json["token_strs"] == ["h", "i"]


def test_a_text_reaches_the_engine_as_it_is() -> None:
    asked = asked_by("/tokenize", model="fake", prompt="hi")
    assert (asked.model, asked.prompt) == ("fake", RawPrompt("hi"))
    assert asked.only_prepare == PromptOnly()


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"return_token_strs": True}, PromptOnly(token_texts=True)),
        ({"add_special_tokens": False}, PromptOnly(add_special_tokens=False)),
        ({"add_special_tokens": True}, PromptOnly(add_special_tokens=True)),
        ({"add_special_tokens": None, "continue_final_message": False}, PromptOnly()),
    ],
)
def test_what_is_wanted_of_a_prompt_reaches_the_engine(
    fields: dict[str, Any], wanted: PromptOnly
) -> None:
    assert asked_by("/tokenize", prompt="hi", **fields).only_prepare == wanted
    assert asked_by("/tokenize", **CHAT, **fields).only_prepare == wanted


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template", COUNT])
def test_a_conversation_is_read_as_for_an_answer(path: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    messages = [{"role": "developer", "content": "a"}, {"role": "user", "content": [image]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    fields = {"messages": messages, "tools": tools, "n": 3, "max_tokens": 5}
    asked = asked_by(path, **fields, chat_template_kwargs={"a": 1}, enable_thinking=False)
    prompt = asked.prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert prompt.messages[1].content == (ImagePart("data:,", "messages.1.content.0.image_url"),)
    assert prompt.tools == tuple(tools)
    assert prompt.template_kwargs == {"a": 1, "enable_thinking": False}
    assert prompt.add_generation_prompt
    assert asked.n == 1


@pytest.mark.parametrize("path", ["/tokenize", "/apply-template"])
def test_the_generation_prompt_may_be_left_out(path: str) -> None:
    prompt = asked_by(path, **CHAT, add_generation_prompt=False).prompt
    assert isinstance(prompt, ChatPrompt)
    assert not prompt.add_generation_prompt


def test_detokenize_and_apply_template_answer_with_a_prompt() -> None:
    assert ask("/detokenize", tokens=[5, 6]).json == {"prompt": "<hi>"}
    assert ask("/apply-template", **CHAT).json == {"prompt": "<hi>"}
    assert asked_by("/detokenize", tokens=[5, 6]).prompt == RawPrompt((5, 6), "tokens")
    assert asked_by("/detokenize", tokens=[]).prompt == RawPrompt((), "tokens")


def test_input_tokens_are_counted_in_openai_s_shape() -> None:
    assert ask(COUNT, **CHAT).json == {"object": "response.input_tokens", "input_tokens": 3}


def test_the_tokens_of_a_response_s_prompt_are_counted_alike() -> None:
    path, fields = "/v1/responses/input_tokens", {"instructions": "Be brief.", "input": "hi"}
    assert ask(path, **fields).json == {"object": "response.input_tokens", "input_tokens": 3}
    prompt = asked_by(path, **fields).prompt
    assert isinstance(prompt, ChatPrompt)
    assert [message.role for message in prompt.messages] == ["system", "user"]
    assert ask(path, input=[]).error["param"] == "input"
    refused = FakeEngine([InvalidRequest("Too long.", param="messages")])
    assert ask(path, refused, input="hi").error["param"] == "input"


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_every_path_is_served_with_the_version_and_without(
    prefix: str, path: str, body: dict[str, Any]
) -> None:
    assert ask(prefix + path, **body).status == 200


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "hi", **CHAT}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "hi", "return_token_strs": "yes"}, "return_token_strs"),
        ("/tokenize", {"prompt": "hi", "mm_processor_kwargs": {"a": 1}}, "mm_processor_kwargs"),
        ("/tokenize", {"messages": "hi"}, "messages"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {**CHAT, "add_generation_prompt": 1}, "add_generation_prompt"),
        ("/apply-template", {}, "messages"),
        ("/apply-template", {**CHAT, "chat_template": "x"}, "chat_template"),
        ("/apply-template", {**CHAT, "continue_final_message": True}, "continue_final_message"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "hi"}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        (COUNT, {"messages": [{"role": "robot"}]}, "messages.0.role"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    path: str, fields: dict[str, Any], param: str
) -> None:
    engine = knowing()
    answer = ask(path, engine, **fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert not engine.requests


def test_what_the_engine_refuses_has_the_status_of_every_other_request() -> None:
    assert ask("/tokenize", prompt="hi", model="none").status == 404
    assert ask("/tokenize", knowing(is_full=True), prompt="hi").status == 429
    full = FakeEngine([EngineOverloaded("full")])
    assert ask("/tokenize", full, prompt="hi").status == 429
    assert ask("/tokenize", FakeEngine([GenerationFailed("broken")]), prompt="hi").status == 500


def test_an_engine_that_ends_without_the_tokens_is_an_error() -> None:
    assert ask("/tokenize", FakeEngine([Prepared()]), prompt="hi").status == 500


def test_a_client_that_leaves_ends_its_request() -> None:
    async def work() -> None:
        engine = FakeEngine([Progress("queued", 0, 1)], endless=True)
        asking = Call(make_app(engine), "/tokenize", {"prompt": "hi"})
        await until_steps(engine, 2)
        await asking.hang_up()
        assert engine.num_closed == 1

    run(work())
