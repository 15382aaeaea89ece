"""Channels become reasoning, content and calls; no mark and no name of a channel is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlx_server.parsers.harmony_marks import MARKS
from mlx_server.parsers.output import OutputParser, ReasoningDelta, ToolCallArguments, ToolCallStart
from mlx_server.parsers.reasoning import make_segmenter
from mlx_server.parsers.segments import Kind
from mlx_server.parsers.tools.call import MalformedCall
from mlx_server.parsers.tools.harmony_call import parse_tool_call
from tests.parser_cuts import Result, cuts, read, read_every_way, tool

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

TOOLS = (tool("f", "a"), tool("my-tool"))
THOUGHT = "<|channel|>analysis<|message|>think<|end|>"
NEXT = "<|start|>assistant"
FINAL = "<|channel|>final<|message|>four<|return|>"
HEADS = [
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.f<|message|>",
    "<|channel|>commentary to=functions.f json<|message|>",
    " to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
    " to=functions.f<|channel|>commentary json<|message|>",
    "<|channel|>analysis to=functions.f code<|message|>",
    "<|channel|>commentary to=f<|message|>",
]


def answer(text: str, *, opened: bool = False, tools: Any = TOOLS) -> Result:
    return read_every_way(text, tools, "harmony", "harmony", opened)


def call_of(name: str, arguments: str = "{}") -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}"


def test_b094_analysis_is_reasoning_and_final_is_the_answer() -> None:
    assert answer(THOUGHT + NEXT + FINAL) == Result("four", (), (), "think")
    assert answer(THOUGHT + NEXT + FINAL, tools=()) == Result("four", (), (), "think")


def test_the_prompt_may_have_opened_the_reasoning() -> None:
    text = f"think<|end|>{NEXT}{FINAL}"
    assert answer(text, opened=True) == Result("four", (), (), "think")


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("end", ["<|call|>", "<|end|>", ""])
def test_a_message_to_a_function_is_a_call(head: str, end: str) -> None:
    found = answer(f'{head}{{"a": {{"b": "}}"}}}}\n{end}')
    assert found.calls == (("f", '{"a": {"b": "}"}}'),)
    assert (found.content, found.reasoning) == ("", "")


def test_calls_follow_reasoning_and_a_preamble() -> None:
    preamble = f"{NEXT}<|channel|>commentary<|message|>I look.<|end|>"
    calls = f"{NEXT}{call_of('f', '{}')}<|call|>{NEXT}{call_of('my-tool')}<|call|>"
    found = answer(THOUGHT + preamble + calls)
    assert found.calls == (("f", "{}"), ("my-tool", "{}"))
    assert (found.content, found.reasoning) == ("I look.", "think")


def test_b085_a_call_without_a_body_has_no_arguments() -> None:
    assert answer("<|channel|>commentary to=functions.f<|message|><|call|>").calls == (("f", "{}"),)


def test_messages_of_one_channel_are_parts_of_one_text() -> None:
    thoughts = f"{THOUGHT}{NEXT}<|channel|>analysis<|message|>more<|end|>"
    answers = f"{NEXT}<|channel|>commentary<|message|>one<|end|>{NEXT}{FINAL}"
    assert answer(thoughts + answers) == Result("one\n\nfour", (), (), "think\nmore")


@pytest.mark.parametrize(
    "header",
    ["<|channel|>", "<|channel|>analysis", "<|channel|>commentary to=functions.f ", "<|start|>ass"],
)
def test_an_answer_that_ends_in_a_header_shows_none_of_it(header: str) -> None:
    assert answer(THOUGHT + header) == Result("", (), (), "think")


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<|channel|>analysis<|message|>think", "think", ""),
        ("<|channel|>final<|message|>four", "", "four"),
        (f"<|channel|>analysis<|message|>think{NEXT}{FINAL}", "think", "four"),
        (f"<|channel|>analysis<|message|>think{FINAL}", "think", "four"),
        (THOUGHT + FINAL, "think", "four"),
        (f"{THOUGHT}\n{NEXT}<|channel|>final <|constrain|>json<|message|>{{}}", "think", "{}"),
        (f"{THOUGHT}\nfour", "think", "four"),
        ("four", "", "four"),
        ("<|message|>four", "", "four"),
        ("<|start|>assistant<|message|>four<|end|>", "", "four"),
    ],
)
def test_b088_marks_that_are_missing_lose_nothing(text: str, reasoning: str, content: str) -> None:
    assert answer(text) == Result(content, (), (), reasoning)


@pytest.mark.parametrize(
    ("body", "streamed"),
    [('{"a": "1', '{"a": "1'), ('{"a": }', '{"a": '), ("[1]", None), ('{"a":1} x', '{"a":1')],
)
def test_b073_what_is_no_json_object_comes_as_content(body: str, streamed: str | None) -> None:
    found = answer(f"{call_of('f', body)}<|call|>")
    assert (found.content, found.calls) == (body, ())
    assert found.streamed == (() if streamed is None else (("f", streamed),))


def test_a_message_to_nobody_known_is_no_call() -> None:
    assert answer("<|channel|>commentary to=browser<|message|>x<|call|>").content == "x"
    assert answer("<|channel|>analysis to=python code<|message|>x<|call|>").reasoning == "x"
    assert answer("<|channel|>commentary to=functions.<|message|>{}<|call|>").content == "{}"


def test_b050_without_tools_a_call_is_text() -> None:
    assert answer(f"{call_of('f')}<|call|>", tools=()) == Result("{}", (), ())


def test_what_the_model_says_for_others_is_no_answer() -> None:
    result = "<|start|>functions.f to=assistant<|channel|>commentary<|message|>42<|end|>"
    found = answer(f"{call_of('f')}<|call|>{result}{NEXT}{FINAL}")
    assert (found.calls, found.content, found.reasoning) == ((("f", "{}"),), "four", "42")


def test_without_a_format_for_reasoning_it_is_content() -> None:
    found = read_every_way(THOUGHT + NEXT + FINAL, TOOLS, "harmony")
    assert found == Result("think\n\nfour", (), ())


def test_reasoning_and_arguments_flow_as_they_come() -> None:
    parser = OutputParser("harmony", TOOLS, "harmony")
    assert parser.feed("<|channel|>analysis<|message|>") == []
    assert parser.is_reasoning
    assert parser.feed("think") == [ReasoningDelta("think")]
    assert parser.feed("<|end|>") == []
    assert not parser.is_reasoning
    assert parser.feed("<|start|>assistant" + call_of("f", "")) == []
    (start, arguments) = parser.feed('{"a"')
    assert isinstance(start, ToolCallStart) and start.name == "f"
    assert arguments == ToolCallArguments(0, '{"a"')
    assert parser.feed(": 1}") == [ToolCallArguments(0, ": 1")]
    assert parser.num_tool_calls == 0
    assert parser.finish() == [ToolCallArguments(0, "}")]
    assert parser.num_tool_calls == 1


def test_segments_join_to_the_text_and_tell_reasoning_from_the_answer() -> None:
    text = f"{THOUGHT}{NEXT}{call_of('f')}<|call|>{NEXT}{FINAL}"
    for pieces in cuts(text):
        segmenter = make_segmenter("harmony", is_reasoning=False)
        segments = [segment for piece in pieces for segment in segmenter.feed(piece)]
        segments += segmenter.finish()
        assert "".join(segment.text for segment in segments) == text
        parts = {k: "".join(s.text for s in segments if s.kind is k) for k in Kind}
        assert (parts[Kind.REASONING], parts[Kind.REST]) == ("think", "four")


def test_a_block_of_the_format_is_read_as_a_whole_too() -> None:
    (call,) = parse_tool_call('f <|constrain|>json<|message|>{"a": 1}', TOOLS)
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})
    for wrong in ("f<|message|>[]", "f", '<|message|>{"a": 1}'):
        with pytest.raises(MalformedCall):
            parse_tool_call(wrong, TOOLS)


WORDS = ["assistant", "analysis", "final", "commentary", " to=functions.f", "to=", "json", "{", "}"]
bits = st.lists(st.sampled_from([*MARKS, *WORDS, '"a":1', " ", "\n", "<", "<|", "x"]), max_size=25)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(bits.map("".join), st.data(), st.booleans())
def test_no_cut_changes_the_result_and_no_mark_is_shown(
    text: str, data: Any, is_reasoning: bool
) -> None:
    asked = (TOOLS, "harmony", "harmony", is_reasoning)
    whole = read([text], *asked)
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert read(pieces, *asked) == whole
    assert read(text, *asked) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)
