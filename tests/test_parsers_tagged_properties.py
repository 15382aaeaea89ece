"""What must hold of the formats in tags for every text and every way to cut it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.parser_cuts import read
from tests.tagged_calls import CALLS, NAMES, TOOLS

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)
ODD = ["a", " ", "\n", "<", ">", "{", "}", '"', "\\", "é😀", ",", ":", "[", "]", "call:now{", "]]>"]


def bits(name: str) -> list[str]:
    """The pieces of a call, and what may stand in their place."""
    return [*re.split(r"(?=[<\n{}:,\]])", CALLS[name]), *ODD]


def cut(text: str, data: Any) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6), label="cuts"))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize("name", NAMES)
@quick
@given(st.data())
def test_no_cut_changes_the_result_and_complete_calls_hold_objects(name: str, data: Any) -> None:
    pieces = bits(name)
    start = data.draw(st.integers(0, len(pieces)), label="start")
    noise = data.draw(st.lists(st.sampled_from(pieces), max_size=12), label="noise")
    text = "".join([*pieces[:start], *noise])
    whole = read([text], TOOLS, name)
    assert read(cut(text, data), TOOLS, name) == whole
    assert read(text, TOOLS, name) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)
    if not whole.calls:
        assert whole.content == text


@pytest.mark.parametrize("name", NAMES)
@quick
@given(st.data(), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_string_arrives_as_it_was_written(name: str, data: Any, value: str) -> None:
    if any(mark in value for mark in ("</", "]]>", "<|", "<esc", "]<]")):
        return
    text = CALLS[name].replace("New York", value)
    ((_, arguments),) = read(cut(text, data), TOOLS, name).calls
    assert json.loads(arguments)["city"] == value
