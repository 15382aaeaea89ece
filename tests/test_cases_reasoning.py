"""Reported faults of servers like this one, replayed through the whole server: what is thought."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from mlx_server.config import EngineConfig
from mlx_server.parsers.harmony_marks import MARKS
from tests.scripted import Script, make_tokenizer
from tests.scripted_server import Served, Stream, prompt_of, scripted_server
from tests.tiny.templates import THINKING

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
THOUGHT = ["plan", " it</thi", "nk>", "\n\nAnswer"]


@pytest.fixture
def thinker() -> Script:
    return Script(make_tokenizer(THINKING))


@pytest.fixture
def served(thinker: Script, tmp_path: Path) -> Iterator[Served]:
    with scripted_server(tmp_path, m=thinker) as served:
        yield served


def thought_of(stream: Stream, name: str = "reasoning_content") -> str:
    deltas = (choice["delta"] for frame in stream.frames for choice in frame["choices"])
    return "".join(delta.get(name, "") for delta in deltas)


def ask_both_ways(served: Served, **fields: Any) -> tuple[str, str, str]:
    """Reasoning, content and finish_reason, which must not depend on how they are sent."""
    choice = served.chat(**fields)["choices"][0]
    message = choice["message"]
    whole = (message.get("reasoning_content", ""), message["content"], choice["finish_reason"])
    stream = served.stream(**fields)
    assert (thought_of(stream), stream.content, *stream.finish_reasons) == whole
    return whole


def test_b086_reasoning_that_the_template_opens_is_told_from_the_answer(
    served: Served, thinker: Script
) -> None:
    thinker.say(*THOUGHT)
    assert ask_both_ways(served) == ("plan it", "Answer", "stop")


@pytest.mark.parametrize(("limit", "reason"), [(2, "length"), (None, "stop")])
def test_b088_reasoning_without_an_end_stays_reasoning(
    served: Served, thinker: Script, limit: int | None, reason: str
) -> None:
    thinker.say(*THOUGHT[:2])
    assert ask_both_ways(served, max_tokens=limit) == ("plan it</thi", "", reason)


@pytest.mark.parametrize(
    "switch",
    [
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
    ],
    ids=["top", "nested", "effort", "object"],
)
def test_b090_without_reasoning_the_answer_is_content(
    served: Served, thinker: Script, switch: dict[str, Any]
) -> None:
    thinker.say("Pa", "ris")
    assert ask_both_ways(served, **switch) == ("", "Paris", "stop")


def test_b093_both_names_hold_the_same_reasoning(served: Served, thinker: Script) -> None:
    thinker.say(*THOUGHT)
    message = served.chat()["choices"][0]["message"]
    assert message["reasoning"] == message["reasoning_content"] == "plan it"
    stream = served.stream()
    assert thought_of(stream, "reasoning") == thought_of(stream) == "plan it"


def test_b055_stop_strings_end_the_answer_and_not_the_reasoning(
    served: Served, thinker: Script
) -> None:
    thinker.say("I will emit </run> later", "</think>", "done", "</r", "un>", " junk")
    assert ask_both_ways(served, stop=["</run>"]) == ("I will emit </run> later", "done", "stop")


def test_b092_a_call_in_the_reasoning_is_one(served: Served, thinker: Script) -> None:
    thinker.say("I check. ", '<tool_call>{"name":"f","arguments":{}}</tool_call>', "</think>")
    stream = served.stream(tools=[TOOL])
    assert [call["arguments"] for call in stream.tool_calls.values()] == ["{}"]
    assert (thought_of(stream), stream.finish_reasons) == ("I check.", ["tool_calls"])


def test_tokens_of_the_reasoning_are_counted(served: Served, thinker: Script) -> None:
    thinker.say(*THOUGHT)
    whole = served.chat()["usage"]
    stream = served.stream(stream_options={"include_usage": True})
    assert whole["completion_tokens_details"] == {"reasoning_tokens": 3}
    assert whole["completion_tokens"] == 5
    assert stream.usage is not None
    assert stream.usage["completion_tokens_details"] == {"reasoning_tokens": 3}
    off = served.chat(enable_thinking=False)["usage"]
    assert "completion_tokens_details" not in off


def test_reasoning_of_the_history_is_not_shown_to_a_template_that_does_not_read_it(
    served: Served, thinker: Script
) -> None:
    thinker.say("hm</think>ok")
    history = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes", "reasoning_content": "zebra", "reasoning": "zebra"},
        {"role": "user", "content": "and?"},
    ]
    prompt = prompt_of(served, history)
    assert "yes" in prompt
    assert "zebra" not in prompt


def test_texts_of_plain_completions_are_left_alone(served: Served, thinker: Script) -> None:
    thinker.say("<think>", "a STOP", "</think>", "b")
    stream = served.stream("/v1/completions", prompt="x", stop=["STOP"])
    assert stream.content == "<think>a "


HARMONY = """{%- for m in messages -%}
  {{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}
{%- endfor -%}
{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
{{- '<|start|>assistant' -}}{# <|channel|> #}"""


@pytest.fixture
def harmonist() -> Script:
    tokenizer = make_tokenizer(HARMONY)
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return Script(tokenizer)


def test_b094_channels_of_special_tokens_are_told_apart(harmonist: Script, tmp_path: Path) -> None:
    thought = ["<|channel|>", "analysis", "<|message|>", "th", "ink", "<|end|>"]
    final = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "four", "<|return|>"]
    harmonist.say(*thought, *final, "junk")
    with scripted_server(tmp_path, m=harmonist) as served:
        assert ask_both_ways(served) == ("think", "four", "stop")
        assert served.chat()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_the_mark_that_ends_a_call_ends_the_answer(harmonist: Script, tmp_path: Path) -> None:
    call = ["<|channel|>", "commentary to=functions.f ", "<|constrain|>", "json", "<|message|>"]
    harmonist.say(*call, '{"a"', ": 1}", "<|call|>", "junk")
    with scripted_server(tmp_path, m=harmonist) as served:
        choice = served.chat(tools=[TOOL])["choices"][0]
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


def test_parsers_can_be_switched_off_and_the_template_given(
    thinker: Script, tmp_path: Path
) -> None:
    thinker.say("a</think>b")
    off = EngineConfig(reasoning_parser="none")
    with scripted_server(tmp_path / "off", engine_config=off, m=thinker) as served:
        assert served.chat()["choices"][0]["message"]["content"] == "a</think>b"
    other = EngineConfig(chat_template="{{ messages[0].content }}[THINK]")
    thinker.say_only("a[/THINK]b")
    with scripted_server(tmp_path / "other", engine_config=other, m=thinker) as served:
        assert ask_both_ways(served) == ("a", "b", "stop")
