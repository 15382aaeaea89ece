"""Prompts without an answer, through the whole server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted import Script
from tests.scripted_server import Body, Served, scripted_server

CHAT: Body = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def served(script: Script, other: Script, tmp_path: Path) -> Iterator[Served]:
    script.say("fine")
    other.say("well")
    with scripted_server(tmp_path, a=script, b=other) as served:
        yield served


def post(served: Served, path: str, body: Body, status: int = 200) -> Body:
    answer = served.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    found: Body = answer.json()
    return found


def test_tokens_go_there_and_back(served: Served) -> None:
    tokenized = post(served, "/tokenize", {"prompt": "h\u00e9", "return_token_strs": True})
    assert tokenized == {
        "tokens": [byte + 3 for byte in "h\u00e9".encode()],
        "count": 3,
        "max_model_len": 8192,
        "token_strs": ["h", "\ufffd", "\ufffd"],
    }
    assert post(served, "/detokenize", {"tokens": tokenized["tokens"]}) == {"prompt": "h\u00e9"}


def test_the_count_of_a_chat_is_that_of_its_usage(served: Served, script: Script) -> None:
    template = post(served, "/apply-template", CHAT)["prompt"]
    tokenized = post(served, "/tokenize", CHAT)
    assert post(served, "/detokenize", {"tokens": tokenized["tokens"]})["prompt"] == template
    counted = post(served, "/v1/chat/completions/input_tokens", CHAT)["input_tokens"]
    assert counted == tokenized["count"]
    assert script.log.count("prefill") == 0
    assert served.chat(**CHAT)["usage"]["prompt_tokens"] == counted


def test_the_model_that_is_named_is_loaded(served: Served) -> None:
    post(served, "/tokenize", {"prompt": "hi", "model": "b"})
    assert served.loader.loads[-1] == "b"
    post(served, "/v1/chat/completions/input_tokens", {**CHAT, "model": "a"})
    assert served.loader.loads[-1] == "a"


def test_wrong_prompts_are_refused_like_those_of_answers(served: Served) -> None:
    wrong = post(served, "/detokenize", {"tokens": [99_999]}, 400)["error"]
    assert wrong["param"] == "tokens"
    kwargs = {**CHAT, "chat_template_kwargs": {"tokenize": True}}
    assert post(served, "/apply-template", kwargs, 400)["error"]["param"] == "chat_template_kwargs"
    assert post(served, "/tokenize", {"prompt": "x", "model": "none"}, 404)
    assert post(served, "/tokenize", {"prompt": "hi"})["count"] == 2
