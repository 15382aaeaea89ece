"""The Messages API through the whole server, asked by Anthropic's own client over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest

from mlx_server.config import ServerConfig
from tests.messages_requests import CALL, TOOL, Body
from tests.pictures import data_url, png
from tests.scripted import Script, make_tokenizer
from tests.scripted_server import Served, last_text, scripted_server
from tests.tiny.checkpoints import tiny_qwen3_vl
from tests.tiny.templates import THINKING
from tests.tiny_server import tiny_server

KEY = "sk-right"
QUESTION: Any = {"role": "user", "content": "What is there?"}


@contextmanager
def client_of(served: Served, api_key: str = KEY) -> Iterator[anthropic.Anthropic]:
    host, port = served.address
    with (
        httpx2.Client(trust_env=False, timeout=60.0) as http,
        anthropic.Anthropic(
            base_url=f"http://{host}:{port}", api_key=api_key, http_client=http, max_retries=0
        ) as client,
    ):
        yield client


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def served(script: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, config=ServerConfig(api_key=KEY), m=script) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with client_of(served) as client:
        yield client


def asked(*turns: Any, **fields: Any) -> Body:
    return {"model": "m", "max_tokens": 50, "messages": [QUESTION, *turns], **fields}


def test_an_answer_whole_and_streamed(client: anthropic.Anthropic, script: Script) -> None:
    script.say("noth", "ing")
    whole = client.messages.create(**asked())
    with client.messages.stream(**asked()) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()

    assert whole.content[0].text == text == "nothing"
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    assert whole.model == streamed.model
    assert whole._request_id


def test_b070_what_was_cached_is_not_counted_as_input(
    client: anthropic.Anthropic, script: Script
) -> None:
    script.say("fine")
    fields = asked(system="be kind " * 50)
    first = client.messages.create(**fields).usage
    again = client.messages.create(**fields).usage
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message().usage

    assert first.cache_read_input_tokens == 0
    assert again.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == first.input_tokens
    assert streamed.input_tokens == again.input_tokens
    assert streamed.cache_read_input_tokens == again.cache_read_input_tokens


@pytest.mark.parametrize("limit", [50, 3])
def test_b053_a_stop_sequence_ends_the_answer_and_is_told(
    client: anthropic.Anthropic, script: Script, limit: int
) -> None:
    script.say("one ", "ST", "OP", " two")
    message = client.messages.create(**asked(max_tokens=limit, stop_sequences=["###", "STOP"]))
    assert message.content[0].text == "one "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")


def test_b040_the_limit_ends_the_answer(client: anthropic.Anthropic, script: Script) -> None:
    script.say("one", " two", " three")
    message = client.messages.create(**asked(max_tokens=2))
    assert message.content[0].text == "one two"
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 2)


def test_an_answer_goes_on_where_the_last_message_ends(
    client: anthropic.Anthropic, script: Script, served: Served
) -> None:
    script.say("B", ")")
    begun = {"role": "assistant", "content": "The answer is ("}
    message = client.messages.create(**asked(begun))
    assert message.content[0].text == "B)"
    assert last_text(served).endswith("<|im_start|>assistant\nThe answer is (B)")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_loop_of_tools(
    client: anthropic.Anthropic, script: Script, served: Served, is_stream: bool
) -> None:
    def ask(*turns: Any) -> anthropic.types.Message:
        fields = asked(*turns, tools=[TOOL])
        if not is_stream:
            message: anthropic.types.Message = client.messages.create(**fields)
            return message
        with client.messages.stream(**fields) as stream:
            return stream.get_final_message()

    script.say("I look. ", CALL)
    script.say("A door.")
    first = ask()
    words, call = first.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "a door"}
    second = ask(
        {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}
    )

    assert first.stop_reason == "tool_use"
    assert words.text.strip() == "I look."
    assert call.input == {"place": "here"}
    assert second.content[0].text == "A door."
    text = last_text(served)
    assert '{"name": "look", "arguments": {"place": "here"}}' in text
    assert "<tool_response>\na door\n</tool_response>" in text


THOUGHT = ["plan", " it</thi", "nk>", "\n\nAnswer"]


@pytest.fixture
def thinker() -> Script:
    script = Script(make_tokenizer(THINKING))
    script.say(*THOUGHT)
    return script


@pytest.fixture
def thinking_client(thinker: Script, tmp_path: Path) -> Iterator[anthropic.Anthropic]:
    with scripted_server(tmp_path, m=thinker) as served, client_of(served) as client:
        yield client


ENABLED = {"type": "enabled", "budget_tokens": 1024}


@pytest.mark.parametrize("thinking", [ENABLED, {**ENABLED, "display": "omitted"}])
def test_b086_thoughts_are_blocks_of_their_own_and_go_back(
    thinking_client: anthropic.Anthropic, thinking: Body
) -> None:
    fields = asked(thinking=thinking)
    whole = thinking_client.messages.create(**fields)
    with thinking_client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()

    thought, answer = whole.content
    assert thought.thinking == ("" if "display" in thinking else "plan it")
    assert thought.signature
    assert answer.text == "Answer"
    assert [block.to_dict() for block in streamed.content] == [
        block.to_dict() for block in whole.content
    ]
    assert whole.usage.output_tokens_details == streamed.usage.output_tokens_details
    assert 0 < whole.usage.output_tokens_details.thinking_tokens < whole.usage.output_tokens
    turns = ({"role": "assistant", "content": whole.content}, QUESTION)
    assert thinking_client.messages.create(**asked(*turns)).content


def test_b088_thoughts_without_an_end_stay_thoughts(
    thinking_client: anthropic.Anthropic,
) -> None:
    message = thinking_client.messages.create(**asked(max_tokens=1, thinking=ENABLED))
    assert [block.type for block in message.content] == ["thinking"]
    assert message.stop_reason == "max_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        asked(thinking={"type": "disabled"}),
        asked({"role": "assistant", "content": "I say: "}),
    ],
    ids=["disabled", "begun"],
)
def test_b090_without_thinking_all_is_the_answer(
    thinker: Script, thinking_client: anthropic.Anthropic, fields: Body
) -> None:
    thinker.say_only("Paris")
    (block,) = thinking_client.messages.create(**fields).content
    assert (block.type, block.text) == ("text", "Paris")


def test_the_count_is_that_of_the_answer(client: anthropic.Anthropic, script: Script) -> None:
    script.say("fine")
    fields = asked(system="be kind", tools=[TOOL])
    counted = client.messages.count_tokens(
        **{name: value for name, value in fields.items() if name != "max_tokens"}
    )
    assert counted.input_tokens == client.messages.create(**fields).usage.input_tokens


def test_the_key_is_checked(served: Served, script: Script) -> None:
    script.say("fine")
    with (
        client_of(served, "sk-wrong") as client,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        client.messages.create(**asked())
    assert refused.value.body["error"]["type"] == "authentication_error"
    assert refused.value.request_id


def test_a_prompt_that_is_too_long_is_refused(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(**asked(system="x" * 10_000))


def image(url: str) -> Body:
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


def test_b098_b100_pictures_are_seen_in_turns_and_in_results(tmp_path: Path) -> None:
    red = image(data_url(png("red")))
    call = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [red]}
    loop = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    cut = {"type": "image", "source": {**red["source"], "data": "iVBORw0KGgo"}}

    with tiny_server(tiny_qwen3_vl(tmp_path / "m")) as served, client_of(served) as client:

        def num_input_tokens(*turns: Any) -> int:
            usage = client.messages.create(**asked(*turns, max_tokens=1)).usage
            return int(usage.input_tokens + usage.cache_read_input_tokens)

        plain = num_input_tokens()
        assert num_input_tokens({"role": "user", "content": [red]}) > plain + 2
        assert num_input_tokens(*loop) > plain + 2
        with pytest.raises(anthropic.BadRequestError, match="messages.1.content.0.source"):
            client.messages.create(**asked({"role": "user", "content": [cut]}))
