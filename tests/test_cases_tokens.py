"""Prompts without an answer, through the whole server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def complete(served: Served, **fields: Any) -> Body:
    return post(served, "/v1/completions", {"prompt": "abc", **fields})


def test_b044_a_prompt_is_scored_with_and_without_an_answer(served: Served) -> None:
    # in the form in which harnesses ask: token ids, and all but the last number are the prompt's
    ids = [ord(char) + 3 for char in "abc"]
    scored = complete(served, prompt=ids, echo=True, logprobs=1, max_tokens=1)["choices"][0]
    bare = complete(served, echo=True, logprobs=1, max_tokens=0)["choices"][0]
    assert (scored["text"], bare["text"]) == ("abcfine", "abc")
    assert scored["logprobs"]["tokens"] == ["a", "b", "c", "fine"]
    assert scored["logprobs"]["text_offset"] == [0, 1, 2, 3]
    assert {len(values) for values in scored["logprobs"].values()} == {4}
    for key, values in bare["logprobs"].items():
        assert values == scored["logprobs"][key][:3]
    # a model that prefers no token, of 4096
    assert bare["logprobs"]["token_logprobs"] == [None, *[pytest.approx(-8.3178, abs=1e-3)] * 2]
    assert bare["finish_reason"] == "length"


def test_scored_prompts_come_in_their_order_and_stream(served: Served) -> None:
    fields: Body = {
        "prompt": ["abc", "defgh"],
        "echo": True,
        "logprobs": 0,
        "max_tokens": 0,
        "n": 2,
    }
    body = complete(served, **fields)
    assert [choice["text"] for choice in body["choices"]] == ["abc", "abc", "defgh", "defgh"]
    assert [len(c["logprobs"]["tokens"]) for c in body["choices"]] == [3, 3, 5, 5]
    assert body["usage"]["completion_tokens"] == 0
    stream = served.stream("/v1/completions", **fields)
    assert stream.is_done
    assert stream.finish_reasons == ["length"] * 4


def test_best_of_answers_as_one_of_its_candidates(served: Served) -> None:
    body = complete(served, best_of=3, n=2)
    assert [choice["text"] for choice in body["choices"]] == ["fine", "fine"]
    assert body["usage"]["completion_tokens"] == 6
