from __future__ import annotations

import re
from typing import Any

import pytest

from mlx_server.engine.sequence import (
    Delta,
    FinishReason,
    PromptLogprobs,
    RawPrompt,
    TokenLogprob,
)
from tests.asgi_client import Answer, call, make_app
from tests.fake_engine import FakeEngine, answering, deltas, started

PATH = "/v1/completions"


def complete(engine: FakeEngine, **fields: Any) -> Answer:
    answer = call(make_app(engine), PATH, {"prompt": "Once", **fields})
    assert answer.status == 200, answer.body
    return answer


def refused(**fields: Any) -> dict[str, Any]:
    engine = answering("ok")
    answer = call(make_app(engine), PATH, {"prompt": "Once", **fields})
    assert answer.status == 400, answer.body
    assert not engine.requests
    return answer.error


def text(answer: Answer, index: int = 0) -> str:
    choices = [c for chunk in answer.chunks for c in chunk["choices"] if c["index"] == index]
    return "".join(choice["text"] for choice in choices)


def test_answer_is_the_models_text_as_it_is() -> None:
    body = complete(answering(" upon", " a <tool_call>")).json

    assert re.fullmatch("cmpl-[0-9a-f]{32}", body["id"])
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {
            "index": 0,
            "text": " upon a <tool_call>",
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"]["total_tokens"] == 9


def test_stream_has_one_identity_one_end_and_the_usage() -> None:
    engine = answering(" upon", " a")

    answer = complete(engine, stream=True, stream_options={"include_usage": True})

    *others, last = answer.chunks
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in answer.chunks} == {
        (last["id"], "text_completion", last["created"], "org/fake")
    }
    assert text(answer) == " upon a"
    assert [c["choices"][0]["finish_reason"] for c in others] == [None, None, "stop"]
    assert last["choices"] == []
    assert last["usage"] == complete(engine).json["usage"]


@pytest.mark.parametrize(
    ("sent", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        (["a", [3]], ["a", (3,)]),
    ],
)
def test_every_form_of_prompt_reaches_the_engine(sent: Any, prompts: list[Any]) -> None:
    engine = answering("ok")

    body = complete(engine, prompt=sent).json

    raw = [request.prompt for request in engine.requests]
    assert [prompt.content for prompt in raw if isinstance(prompt, RawPrompt)] == prompts
    assert [choice["index"] for choice in body["choices"]] == list(range(len(prompts)))
    assert len({request.request_id for request in engine.requests}) == len(prompts)


@pytest.mark.parametrize(
    "sent",
    [[], None, 5, {}, [[]], [1.5], [-1], [True], [[1], 2], ["a", 1], [["a"]], ["a"] * 129],
)
def test_other_prompts_are_refused_by_name(sent: Any) -> None:
    assert refused(prompt=sent)["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_with_several_choices_are_indexed_in_order(stream: bool) -> None:
    script = [started(), *deltas("x", index=1), *deltas("y", finish=FinishReason.LENGTH)]

    answer = complete(FakeEngine(script), prompt=["a", "b"], n=2, echo=True, stream=stream)

    if stream:
        assert [text(answer, index) for index in range(4)] == ["ay", "ax", "by", "bx"]
    else:
        choices = answer.json["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [choice["text"] for choice in choices] == ["ay", "ax", "by", "bx"]
        ends = [choice["finish_reason"] for choice in choices]
        assert ends == ["length", "stop", "length", "stop"]
        assert answer.json["usage"]["prompt_tokens"] == 14


@pytest.mark.parametrize("stream", [False, True])
def test_echo_puts_the_prompt_first(stream: bool) -> None:
    engine = answering(" upon")

    answer = complete(engine, echo=True, stream=stream)

    assert engine.requests[0].echo
    found = text(answer) if stream else answer.json["choices"][0]["text"]
    assert found == "Once upon"


def entry(token: str, token_bytes: bytes | None = None) -> TokenLogprob:
    top = (TokenLogprob("x", b"x", -0.125), TokenLogprob("y", b"y", float("-inf")))
    return TokenLogprob(token, token_bytes or token.encode(), -0.5, top)


def test_b044_logprobs_have_four_lists_of_one_length() -> None:
    engine = FakeEngine([started(), *deltas("ab", "c", logprobs=[entry("ab"), entry("c")])])

    logprobs = complete(engine, logprobs=2).json["choices"][0]["logprobs"]

    assert engine.requests[0].top_logprobs == 2
    assert logprobs == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [
            {"x": -0.125, "y": -9999.0, "ab": -0.5},
            {"x": -0.125, "y": -9999.0, "c": -0.5},
        ],
        "text_offset": [0, 2],
    }


def test_streamed_logprobs_add_up_to_the_whole_ones() -> None:
    emoji = "😀".encode()
    entries = [entry("\ufffd", emoji[:2]), entry("\ufffd", emoji[2:]), entry("a")]
    engine = FakeEngine([started(), *deltas("", "😀", "a", logprobs=entries)])

    whole = complete(engine, logprobs=1).json["choices"][0]["logprobs"]
    answer = complete(engine, logprobs=1, stream=True)

    assert whole["text_offset"] == [0, 0, 1]
    parts = [chunk["choices"][0]["logprobs"] for chunk in answer.chunks]
    for key, values in whole.items():
        assert [value for part in parts if part for value in part[key]] == values
    assert text(answer) == "😀a"


@pytest.mark.parametrize(
    ("sent", "top_logprobs"), [(0, 0), (5, 5), (2.0, 2), (True, 1), (False, None), (None, None)]
)
def test_logprobs_are_a_count(sent: Any, top_logprobs: int | None) -> None:
    engine = answering("ok")

    complete(engine, logprobs=sent)

    assert engine.requests[0].top_logprobs == top_logprobs


def test_shared_parameters_reach_the_engine() -> None:
    engine = answering("ok")

    complete(engine, max_tokens=3, temperature=0, stop="\n", seed=1, model="fake", best_of=1)

    (request,) = engine.requests
    assert (request.max_tokens, request.stop, request.model) == (3, ("\n",), "fake")
    assert (request.sampling.temperature, request.sampling.seed) == (0.0, 1)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens", None),
        ({"max_tokens": -1, "echo": True}, "max_tokens", None),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"best_of": 3, "stream": True}, "best_of", None),
        ({"best_of": 129}, "best_of", None),
        ({"prompt": ["a"] * 50, "best_of": 3}, "best_of", None),
        ({"best_of": 1, "n": 2}, "best_of", None),
        ({"logprobs": 6}, "logprobs", None),
        ({"logprobs": "x"}, "logprobs", None),
        ({"max_tokens": 0}, "max_tokens", None),
        ({"prompt": ["a"] * 100, "n": 2}, "n", None),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    error = refused(**fields)

    assert error["param"] == param
    assert error["code"] == code


def test_the_path_without_the_version_is_served() -> None:
    assert call(make_app(answering("ok")), "/completions", {"prompt": "a"}).status == 200


def test_all_prompts_of_a_request_are_let_in_or_refused_together() -> None:
    engine = FakeEngine([started(), *deltas("x"), *deltas("y", index=1)])
    complete(engine, prompt=["a", "b", "c"], n=2)
    assert engine.admitted == [6]

    engine = FakeEngine(is_full=True)
    answer = call(make_app(engine), PATH, {"prompt": ["a", "b", "c"]})
    assert answer.status == 429
    assert engine.requests == []


def likely(*logprobs: float) -> list[TokenLogprob]:
    return [TokenLogprob("x", b"x", logprob) for logprob in logprobs]


def candidates() -> FakeEngine:
    """Three answers: the longest is the likeliest by token, the last has no token at all."""
    return FakeEngine(
        [
            started(),
            *deltas("a", index=0, logprobs=likely(-0.5)),
            *deltas("b", "b", "b", index=1, logprobs=likely(-0.2, -0.4, -0.3)),
            *deltas(index=2),
        ]
    )


def test_best_of_gives_the_likeliest_by_token_first() -> None:
    engine = candidates()
    body = complete(engine, best_of=3).json
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "bbb")]
    assert (engine.requests[0].n, engine.requests[0].top_logprobs) == (3, 0)
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 4, "all that was generated"
    assert engine.admitted == [3]


def test_best_of_gives_n_of_each_prompt() -> None:
    body = complete(candidates(), prompt=["p", "q"], best_of=3, n=2, echo=True).json
    assert [choice["text"] for choice in body["choices"]] == ["pbbb", "pa", "qbbb", "qa"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]


def test_best_of_as_many_as_n_leaves_them_in_their_order() -> None:
    engine = candidates()
    body = complete(engine, best_of=3, n=3).json
    assert [choice["text"] for choice in body["choices"]] == ["a", "bbb", ""]
    assert engine.requests[0].top_logprobs is None


def test_best_of_shows_the_logprobs_that_were_asked_for() -> None:
    choice = complete(candidates(), best_of=3, logprobs=0).json["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [-0.2, -0.4, -0.3]


SCORED = PromptLogprobs(b"On", (entry("ce"),))


def scoring() -> FakeEngine:
    return FakeEngine([started(prompt_logprobs=SCORED), *deltas(" up", logprobs=[entry(" up")])])


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_with_logprobs_has_those_of_the_prompt_first(stream: bool) -> None:
    engine = scoring()
    answer = complete(engine, echo=True, logprobs=2, stream=stream)
    assert engine.requests[0].prompt_logprobs
    if stream:
        parts = [chunk["choices"][0]["logprobs"] for chunk in answer.chunks]
        found = {key: [v for part in parts if part for v in part[key]] for key in parts[0]}
        assert text(answer) == "Once up"
    else:
        found = answer.json["choices"][0]["logprobs"]
        assert answer.json["choices"][0]["text"] == "Once up"
    assert found == {
        "tokens": ["On", "ce", " up"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [
            None,
            {"x": -0.125, "y": -9999.0, "ce": -0.5},
            {"x": -0.125, "y": -9999.0, " up": -0.5},
        ],
        "text_offset": [0, 2, 4],
    }


def test_a_prompt_may_be_scored_without_an_answer() -> None:
    end = Delta(0, "", 0, finish_reason=FinishReason.LENGTH)
    engine = FakeEngine([started(prompt_logprobs=SCORED), end])
    body = complete(engine, echo=True, logprobs=1, max_tokens=0).json
    assert engine.requests[0].max_tokens == 0
    assert body["choices"][0]["text"] == "Once"
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["choices"][0]["logprobs"]["tokens"] == ["On", "ce"]
    assert body["usage"]["completion_tokens"] == 0


def test_an_echo_alone_has_no_logprobs_and_asks_for_none() -> None:
    for fields in ({"echo": True}, {"logprobs": 1}, {"echo": True, "best_of": 3}):
        engine = candidates() if "best_of" in fields else answering("x")
        complete(engine, **fields)
        assert not engine.requests[0].prompt_logprobs
