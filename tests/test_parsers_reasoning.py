"""Reasoning is told from the answer, whoever opens it and however the text is cut."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.parsers.output import ContentDelta, OutputParser, ReasoningDelta
from mlx_server.parsers.reasoning import (
    MAX_LEADING_SPACE,
    REASONING_FORMATS,
    detect_reasoning_format,
    make_segmenter,
    opens_reasoning,
)
from tests.parser_cuts import Result, cuts, read_every_way, tool

TOOLS = (tool("f", "a"),)
CALL = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
TAGS = [
    pytest.param(name, start, end, id=f"{name} {start.strip()}")
    for name, form in REASONING_FORMATS.items()
    for start, end in zip(form.starts, form.ends, strict=True)
]


def read(text: str, name: str = "think", *, opened: bool = False, tools: Any = ()) -> Result:
    return read_every_way(text, tools, "json_tools", name, opened)


def parts(text: str, name: str = "think", *, opened: bool = False) -> tuple[str, str]:
    found = read(text, name, opened=opened)
    return found.reasoning, found.content


def test_b086_the_prompt_opens_the_reasoning() -> None:
    assert parts("plan it</think>\n\nAnswer", opened=True) == ("plan it", "Answer")
    assert parts("\nplan\n\nit\n</think>\n\nAn\n\nswer\n", opened=True) == (
        "plan\n\nit",
        "An\n\nswer\n",
    )


@pytest.mark.parametrize(("name", "start", "end"), TAGS)
def test_the_model_opens_the_reasoning(name: str, start: str, end: str) -> None:
    assert parts(f"{start}\nplan < it\n{end}\n\nAn < swer", name) == ("plan < it", "An < swer")
    assert parts(f"\n {start}plan{end}", name) == ("plan", "")


@pytest.mark.parametrize(("name", "start", "end"), TAGS)
def test_b088_reasoning_that_is_never_closed_is_all_there_is(
    name: str, start: str, end: str
) -> None:
    unfinished = f"plan {end[:-1]}"
    assert parts(unfinished, name, opened=True) == (unfinished, "")
    assert parts(f"{start}{unfinished}", name) == (unfinished, "")
    assert parts("plan \n", name, opened=True) == ("plan \n", "")


@pytest.mark.parametrize(("name", "start", "end"), TAGS)
def test_a_tag_that_stands_twice_or_closes_nothing_is_not_shown(
    name: str, start: str, end: str
) -> None:
    assert parts(f"{start}plan{end}Answer", name, opened=True) == ("plan", "Answer")
    assert parts(f"\n{end}\nAnswer", name) == ("", "Answer")
    assert parts(f"{end}Answer", name, opened=True) == ("", "Answer")


@pytest.mark.parametrize("name", sorted(REASONING_FORMATS))
def test_b090_an_answer_without_reasoning_stays_as_it_is(name: str) -> None:
    for text in ("Paris", "\n\nParis \n", "<", "\n", "a <think", ""):
        assert parts(text, name) == ("", text)


def test_b091_tags_in_an_answer_that_are_ordinary_text_are_part_of_it() -> None:
    answer = "Write `<think>` then `</think>` in the file."
    assert parts(answer) == ("", answer)
    assert parts(f"<think>x</think>{answer}") == ("x", answer)
    assert parts(f"x</think>{answer}", opened=True) == ("x", answer)
    assert parts(f"x</think>\n<think>{answer}", opened=True) == ("x", f"<think>{answer}")


def test_reasoning_between_special_tokens_may_come_again() -> None:
    again = "<|channel>thought\na<channel|>One. <|channel>thought\nb<channel|>\nTwo."
    assert parts(again, "gemma4") == ("a\nb", "One. Two.")
    assert parts("<|channel>thought\n<channel|>Paris", "gemma4") == ("", "Paris")


def test_marks_around_the_answer_are_not_shown() -> None:
    solar = "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>"
    assert parts(solar, "solar_open") == ("a", "b")
    cohere = "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>"
    assert parts(cohere, "cohere") == ("a", "b")


def test_an_answer_far_behind_its_beginning_begins_no_reasoning() -> None:
    text = " " * (MAX_LEADING_SPACE + 1) + "<think>x</think>"
    assert parts(text) == ("", text)
    assert parts(text[1:]) == ("x", "")


def test_calls_stand_behind_the_reasoning() -> None:
    found = read(f"plan</think>\n\nNow:\n{CALL}\n", opened=True, tools=TOOLS)
    assert found == Result("Now:\n", (("f", "{}"),), (("f", "{}"),), "plan")


def test_b092_talk_of_calls_in_the_reasoning_is_reasoning() -> None:
    thought = "use <tool_call> or <function=x> here? <tool_call>{}"
    assert read(f"<think>{thought}</think>ok", tools=TOOLS) == Result("ok", (), (), thought)
    assert read(thought, opened=True, tools=TOOLS) == Result("", (), (), thought)


@pytest.mark.parametrize("end", ["</think>", "\n</think>\n\n", "", "\n"])
def test_b092_a_whole_call_of_a_tool_in_the_reasoning_is_one(end: str) -> None:
    found = read(f"<think>I check.\n{CALL}{end}", tools=TOOLS)
    assert found.calls == (("f", "{}"),)
    assert (found.reasoning.rstrip(), found.content) == ("I check.", "")


def test_b092_reasoning_behind_a_call_does_not_become_content() -> None:
    found = read(f"<think>I check. {CALL} More.</think>ok{CALL}", tools=TOOLS)
    assert found.calls == (("f", "{}"), ("f", "{}"))
    assert (found.reasoning, found.content) == ("I check.\nMore.", "ok")


@pytest.mark.parametrize(
    "broken",
    [
        CALL.replace('"f"', '"unknown"'),
        CALL.replace("{}", '{"a":1'),
        CALL.replace("{}", '{"a":</think>'),
    ],
)
def test_b092_what_is_no_call_of_a_tool_stays_reasoning(broken: str) -> None:
    text = broken.partition("</think>")[0]
    found = read(f"<think>I check. {text}</think>ok", tools=TOOLS)
    assert found == Result("ok", (), (), f"I check. {text}")


def test_reasoning_flows_as_it_comes() -> None:
    parser = OutputParser("json_tools", TOOLS, "think", True)
    assert parser.feed("pl") == [ReasoningDelta("pl")]
    assert parser.feed("an ") == [ReasoningDelta("an")]
    assert parser.feed("it</thi") == [ReasoningDelta(" it")]
    assert parser.is_reasoning
    assert parser.feed("nk>\n") == []
    assert not parser.is_reasoning
    assert parser.feed("\nA") == [ContentDelta("A")]
    assert parser.feed("\n") == [ContentDelta("\n")]


def test_segments_join_to_the_text() -> None:
    text = "\n<think> a </think>\n b <think> c"
    for pieces in cuts(text):
        segmenter = make_segmenter("think", is_reasoning=False)
        segments = [segment for piece in pieces for segment in segmenter.feed(piece)]
        assert "".join(s.text for s in [*segments, *segmenter.finish()]) == text


@pytest.mark.parametrize(("name", "start", "end"), TAGS)
def test_a_prompt_that_ends_with_an_opening_tag_has_opened_the_reasoning(
    name: str, start: str, end: str
) -> None:
    assert opens_reasoning(name, f"hi<|assistant|>{start}")
    assert opens_reasoning(name, f"hi<|assistant|>{start}\n\n")
    assert not opens_reasoning(name, f"{start} is a tag<|assistant|>\n")
    assert not opens_reasoning(name, f"<|assistant|>{start}\n\n{end}\n\n")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("{{ '<think>\\n' }}", "think"),
        ("{% if '</think>' in content %}", "think"),
        ("'<|channel>thought\\n<channel|>' <|think|>", "gemma4"),
        ("<|begin|>assistant<|think|><|end|>", "solar_open"),
        ("<|START_THINKING|><|END_THINKING|>", "cohere"),
        ("[THINK][/THINK]", "mistral"),
        ("<seed:think>", "seed"),
        ("Write down your thoughts after 'Here is my thought process:'", "granite"),
    ],
)
def test_the_format_follows_the_marks_of_the_template(
    template: str | None, expected: str | None
) -> None:
    assert detect_reasoning_format(template) == expected
