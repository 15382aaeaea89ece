"""What must hold of the formats in JSON and Python for every text and every way to cut it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mlx_server.parsers.tools.python_literal import literal
from tests.grammars import accepts, calls_grammar
from tests.literal_calls import ALL_FORMS, ARGUMENTS, FORMS, JSON, PYTHON, TOOLS
from tests.parser_cuts import read

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)
ODD = [*"a \n<{}\"'\\,:[]();", "é😀", "now"]
every_form = pytest.mark.parametrize("form", ALL_FORMS)
strings = st.text(st.characters(exclude_categories=["Cs"]))


def bits(form: str) -> list[str]:
    """The pieces of calls, and what may stand in their place."""
    _, _, two = ALL_FORMS[form]
    return [*re.split(r"(?=[<\n{}:,\]\[(`|])", two), *ODD]


def cut(text: str, data: Any) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6), label="cuts"))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@every_form
@quick
@given(st.data())
def test_no_cut_changes_the_result_and_complete_calls_hold_objects(form: str, data: Any) -> None:
    name, _, two = ALL_FORMS[form]
    start = data.draw(st.integers(0, len(two)), label="start")
    noise = data.draw(st.lists(st.sampled_from(bits(form)), max_size=12), label="noise")
    text = two[:start] + "".join(noise)
    whole = read([text], TOOLS, name)
    assert read(cut(text, data), TOOLS, name) == whole
    assert read(text, TOOLS, name) == whole
    for _, arguments in whole.calls:
        assert isinstance(json.loads(arguments), dict)
        arguments.encode()
    if not whole.calls:
        assert whole.content == text


@every_form
@quick
@given(st.data(), strings)
def test_any_string_arrives_as_it_was_written(form: str, data: Any, value: str) -> None:
    name, one, _ = ALL_FORMS[form]
    text = one.replace('"Åre"', literal(value))
    ((_, arguments),) = read(cut(text, data), TOOLS, name).calls
    assert json.loads(arguments)["city"] == value


trips = st.fixed_dictionaries(
    {
        # other control characters have no escape but \u, which no grammar lets through
        "city": st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t")),
        "days": st.integers(-(10**9), 10**9),
    },
    optional={"by_rail": st.booleans(), "stops": st.lists(st.text("ab]})'\"\\"), max_size=3)},
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(trips)
def test_what_the_grammar_lets_through_is_what_is_read(form: str, trip: Any) -> None:
    name, one, _ = FORMS[form]
    trip = {key: trip[key] for key in ARGUMENTS if key in trip}  # as they are declared
    keywords = ", ".join(f"{key}={literal(value)}" for key, value in trip.items())
    text = one.replace(JSON, json.dumps(trip, ensure_ascii=False))
    text = text.replace(PYTHON, f"plan_trip({keywords})")
    assert accepts(calls_grammar(name, TOOLS), text)
    ((_, arguments),) = read([text], TOOLS, name).calls
    assert json.loads(arguments) == trip
