"""The tool formats that are written in JSON or in Python, read in every way they may arrive."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from mlx_server.parsers.output import (
    ContentDelta,
    OutputDelta,
    OutputParser,
    ToolCallArguments,
    ToolCallStart,
)
from mlx_server.parsers.tools import TOOL_FORMATS
from mlx_server.parsers.tools.call import MalformedCall
from tests.literal_calls import (
    ALL_FORMS,
    ARGUMENTS,
    DEEPSEEK,
    JSON,
    KIMI_CALL,
    KIMI_NOW,
    PYTHON,
    TOOLS,
    USUAL,
    deepseek_v3_call,
    deepseek_v31_call,
    solar_call,
)
from tests.parser_cuts import Result, deltas, read_every_way, tool

every_form = pytest.mark.parametrize("form", ALL_FORMS)
MARKED = [form for form in ALL_FORMS if "bare" not in form and form != "granite unclosed"]


def read(text: str, name: str) -> Result:
    return read_every_way(text, TOOLS, name)


def calls(*named: tuple[str, str], content: str = "") -> Result:
    return Result(content, named, named)


def values(result: Result) -> list[tuple[str, object]]:
    return [(name, json.loads(arguments)) for name, arguments in result.calls]


def content_of(found: Iterable[OutputDelta]) -> list[str]:
    return [delta.text for delta in found if isinstance(delta, ContentDelta)]


def ids(text: str, name: str) -> list[str]:
    return [d.id for d in deltas([text], TOOLS, name) if isinstance(d, ToolCallStart)]


@every_form
def test_one_call_and_several_are_read(form: str) -> None:
    name, one, two = ALL_FORMS[form]
    found = read(one, name)
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], "")
    found = read(two, name)
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS), ("now", {})], "")


@pytest.mark.parametrize("form", MARKED)
def test_b081_text_around_calls_is_content(form: str) -> None:
    name, one, _ = ALL_FORMS[form]
    found = read(f"Let me look. {one} So.", name)
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], "Let me look.  So.")


@pytest.mark.parametrize("form", [form for form in ALL_FORMS if "bare" in form])
def test_a_call_without_a_marker_is_one_only_where_the_answer_begins(form: str) -> None:
    name, one, _ = ALL_FORMS[form]
    found = read(f"\n {one} So.", name)
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], " So.")
    assert read(f"So: {one}", name) == calls(content=f"So: {one}")


@every_form
def test_b079_a_call_that_is_cut_stays_as_raw_text(form: str) -> None:
    name, one, _ = ALL_FORMS[form]
    for at in range(1, one.index("b]")):
        found = read(one[:at], name)
        assert not found.calls
        assert found.content == one[:at]


@every_form
def test_a_call_whose_arguments_are_complete_needs_no_closing_marker(form: str) -> None:
    name, one, _ = ALL_FORMS[form]
    python = name in ("pythonic", "llama4_pythonic", "gemma_code")
    complete = one.index('"b]"])') + 6 if python else one.index(JSON) + len(JSON)
    for at in range(complete, len(one)):
        found = read(one[:at], name)
        assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], "")


@every_form
def test_arguments_of_the_wrong_syntax_make_the_block_content(form: str) -> None:
    name, one, _ = ALL_FORMS[form]
    broken = one.replace("3", "3 4")
    found = read(f"{broken} y", name)
    assert (found.calls, found.content) == ((), f"{broken} y")


# a block of lines is read as a whole
@pytest.mark.parametrize("form", [form for form in ALL_FORMS if form != "gemma_code"])
def test_the_name_is_sent_before_the_arguments_are_complete(form: str) -> None:
    name, one, _ = ALL_FORMS[form]
    parser = OutputParser(name, TOOLS)
    found = parser.feed(one[: one.index("days")])
    assert isinstance(found[0], ToolCallStart) and found[0].name == "plan-trip"
    if '"city"' in one:
        text = "".join(d.text for d in found if isinstance(d, ToolCallArguments))
        assert text == JSON[: JSON.index("days")]


@pytest.mark.parametrize("name", [*dict.fromkeys(name for name, *_ in ALL_FORMS.values())])
def test_a_text_between_the_markers_can_be_read_at_once(name: str) -> None:
    form = TOOL_FORMATS[name]
    one = next(one for n, one, _ in ALL_FORMS.values() if n == name)
    one = one.removeprefix(form.tool_call_start).removesuffix(form.tool_call_end)
    if name == "xlam":
        one = f"\n{one}\n"
    if name == "json_tools":
        one = USUAL
    (call,) = form.parse_tool_call(one, TOOLS)
    assert (call.name, json.loads(call.arguments)) == ("plan-trip", ARGUMENTS)
    with pytest.raises(MalformedCall):
        form.parse_tool_call("no call", TOOLS)


def test_b077_mistral_calls_in_a_row_are_calls_in_order() -> None:
    text = '[TOOL_CALLS]f[ARGS]{"c":"Paris"}[TOOL_CALLS]f[ARGS]{"c":"Tokyo"}'
    assert read(text, "mistral") == calls(("f", '{"c":"Paris"}'), ("f", '{"c":"Tokyo"}'))


def test_b081_calls_in_brackets_are_those_of_declared_tools() -> None:
    text = 'Let me look. [Calling tool: now({"a":1})]'
    assert read(text, "json_tools") == calls(("now", '{"a":1}'), content="Let me look. ")
    other = 'Let me look. [Calling tool: other({"a":1})] [1]'
    assert read(other, "json_tools") == calls(content=other)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mistral", r'[TOOL_CALLS]now[ARGS]{"re":"\d+"}'),
        ("mistral", r'[TOOL_CALLS][{"name":"now","arguments":{"re":"\d+"}}]'),
        ("llama3", r'{"name":"now","parameters":{"re":"\d+"}}'),
        (
            "cohere",
            r'<|START_ACTION|>[{"tool_name":"now","parameters":{"re":"\d+"}}]<|END_ACTION|>',
        ),
        ("deepseek_v31", deepseek_v31_call("now", r'{"re":"\d+"}').join(DEEPSEEK)),
    ],
)
def test_b073_illegal_escapes_are_repaired(name: str, text: str) -> None:
    assert read(text, name) == calls(("now", r'{"re":"\\d+"}'))


@pytest.mark.parametrize("name", ["pythonic", "llama4_pythonic"])
def test_b073_strings_of_python_are_repaired(name: str) -> None:
    text = '[now(re="\\d+", text=\'two\nlines\\n\', doc="""a\n"b" """)]'
    assert values(read(text, name)) == [
        ("now", {"re": r"\d+", "text": "two\nlines\n", "doc": 'a\n"b" '})
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deepseek_v3", deepseek_v3_call("now", "").join(DEEPSEEK)),
        ("deepseek_v31", deepseek_v31_call("now", "").join(DEEPSEEK)),
        ("kimi_k2", f"<|tool_calls_section_begin|>{KIMI_NOW.replace('{}', '')}"),
        ("solar_open", solar_call("1", "now", "")),
        ("mistral", '[TOOL_CALLS][{"name": "now"}]'),
        ("mistral", '[TOOL_CALLS][{"name": "now", "arguments": "{}"}]'),
        ("llama3", '{"name": "now"}'),
        ("llama3", '{"type": "function", "name": "now", "parameters": null}'),
    ],
)
def test_b085_arguments_are_always_an_object(name: str, text: str) -> None:
    assert read(text, name) == calls(("now", "{}"))


def test_b083_ids_of_the_model_are_kept_and_are_never_the_same() -> None:
    section = f"<|tool_calls_section_begin|>{KIMI_CALL}{KIMI_NOW}<|tool_calls_section_end|>"
    assert ids(section, "kimi_k2") == ["functions.plan-trip:0", "functions.now:1"]
    assert ids(solar_call("x7", "now", "{}"), "solar_open") == ["x7"]
    assert ids("[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}", "mistral") == ["a1b2c3d4e"]
    first, second = ids(section.replace(KIMI_NOW, KIMI_CALL), "kimi_k2")
    assert (first, second[:5]) == ("functions.plan-trip:0", "call_")
    assert ids(section.replace(":0", ""), "kimi_k2")[0].startswith("call_")
    for text in (solar_call("", "now", "{}"), solar_call(" ", "now", "{}")):
        assert ids(text, "solar_open")[0].startswith("call_")


def test_kimi_names_may_lack_what_stands_around_them() -> None:
    for head in ("now", "now:0", "functions.now", " functions.now:0\n"):
        text = f"<|tool_calls_section_begin|>{KIMI_NOW.replace('functions.now:1', head)}"
        assert read(text, "kimi_k2") == calls(("now", "{}"))


def test_an_undeclared_name_is_reported_behind_a_marker() -> None:
    assert read("[TOOL_CALLS]other[ARGS]{}", "mistral") == calls(("other", "{}"))
    assert read('<|python_tag|>{"name": "other"}', "llama3") == calls(("other", "{}"))
    assert read('<|tool_call|>[{"name": "other"}]', "granite") == calls(("other", "{}"))
    text = "<|tool_call_start|>[my.other(a=1)]<|tool_call_end|>"
    assert read(text, "pythonic") == calls(("my.other", '{"a": 1}'))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", '{"name": "other", "parameters": {"a": 1}}'),
        ("llama3", '{"answer": 42}'),
        ("llama3", '{"name": "now", "age": 3}'),
        ("llama3", '{"parameters": {}, "name": "other"}'),
        ("llama3", "{}"),
        ("llama3", "{"),
        ("llama3", '{"name": "now"'),
        ("llama3", '[{"name": "now"}]'),
        ("llama3", "<|python_tag|>import os\nprint(1)"),
        ("llama3", " \n"),
        ("xlam", "[]"),
        ("xlam", "[1, 2]"),
        ("xlam", '[{"name": "other", "arguments": {}}]'),
        ("xlam", '```json\n{"name": "Alice"}\n```'),
        ("xlam", '```json\n[{"name": "other"}]\n```'),
        ("pythonic", "[]"),
        ("pythonic", "[other(a=1)]"),
        ("pythonic", "[now] and [now()]"),
        ("pythonic", "[see](http://now)"),
        ("pythonic", "[now(x) for x in y]"),
        ("pythonic", "[now(*a)]"),
        ("pythonic", "[now(1)]"),
        ("pythonic", "[now(a=1, a=2)]"),
        ("pythonic", "[now(a=(1])]"),
        ("pythonic", "<|tool_call_start|>now()<|tool_call_end|>"),
        ("llama4_pythonic", "<|python_start|>x = 1<|python_end|>"),
        ("mistral", "[TOOL_CALLS] I call nobody, {}"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] "),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL_CALLS]now[CALL_ID][ARGS]{}"),
        ("mistral", "[TOOL_CALLS]now[ARGS][1]"),
        ("granite", "<|tool_call|>[1]"),
        ("cohere", "<|START_ACTION|>[]<|END_ACTION|>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        ("kimi_k2", f"<|tool_calls_section_begin|>{KIMI_NOW.replace('{}', '[]')}"),
        ("deepseek_v3", deepseek_v31_call("now", "{}").join(DEEPSEEK)),
        ("solar_open", "<|tool_call:begin|>1<|tool_call:args|>{}<|tool_call:end|>"),
        ("solar_open", "<|tool_call:begin|>1<|tool_call:note|>now<|tool_call:args|>{}"),
    ],
)
def test_what_is_no_call_is_content_verbatim(name: str, text: str) -> None:
    found = read(f"{text} so", name)
    assert (found.calls, found.content) == ((), f"{text} so")
    assert read(text, name).content == text


@pytest.mark.parametrize(
    ("name", "pieces", "expected"),
    [
        ("llama3", ['{"', "ans", 'wer"', ": 4"], ["", "", '{"answer"', ": 4"]),
        ("llama3", ['{"name": ', '"n', 'ick"', "}"], ["", "", '{"name": "nick"', "}"]),
        ("llama3", ["\n", "a", " {"], ["", "\na", " {"]),
        ("pythonic", ["[", "se", "e]", "("], ["", "", "[see]", "("]),
        ("xlam", ["[", "1", ","], ["", "[1", ","]),
    ],
)
def test_an_answer_is_held_back_only_while_it_may_be_a_call(
    name: str, pieces: list[str], expected: list[str]
) -> None:
    parser = OutputParser(name, TOOLS)
    found = [parser.feed(piece) for piece in pieces]
    assert ["".join(content_of(deltas)) for deltas in found] == expected


def test_without_tools_an_answer_in_json_is_content() -> None:
    parser = OutputParser("llama3", ())
    assert parser.feed(USUAL) == [ContentDelta(USUAL)]


@pytest.mark.parametrize(("start", "end"), [("<think>", "</think>"), ("", "</think>")])
def test_an_answer_begins_behind_the_reasoning(start: str, end: str) -> None:
    text = f'{start}[now()] or {{"name": "now"}}?\n{end}\n\n{{"name": "now"}}'
    found = read_every_way(text, TOOLS, "llama3", "think", is_reasoning=not start)
    assert found.calls == (("now", "{}"),)
    assert (found.content, found.reasoning) == ("", '[now()] or {"name": "now"}?')


def test_calls_before_a_broken_one_stay_and_the_rest_is_content() -> None:
    text = f"[TOOL_CALLS][{USUAL}, {{oops}}] y"
    found = read(text, "mistral")
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], ", {oops}] y")
    text = f"[{PYTHON}, other()] y"
    found = read(text, "pythonic")
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], ", other()] y")
    text = f"<|tool_calls_section_begin|>{KIMI_CALL}and so on"
    found = read(text, "kimi_k2")
    assert (values(found), found.content) == ([("plan-trip", ARGUMENTS)], "and so on")


def test_names_and_words_in_python_may_be_those_of_json() -> None:
    text = '[plan-trip(city="x", by_rail=true, stops=[null, false])]'
    assert read(text, "pythonic") == calls(
        ("plan-trip", '{"city": "x", "by_rail": true, "stops": [null, false]}')
    )


@pytest.mark.parametrize("string", ['")]"', "'(['", '"""\n)"""', "'it\\'s)'", '""', "r'\\)'"])
def test_brackets_in_strings_close_nothing(string: str) -> None:
    text = f"<|tool_call_start|>[now(a={string}, b=[{{}}])]<|tool_call_end|> y"
    found = read(text, "pythonic")
    assert (len(found.calls), found.content) == (1, " y")


def test_positions_follow_the_schema() -> None:
    assert read('[plan_trip("x", 3)]', "pythonic") == calls(
        ("plan-trip", '{"city": "x", "days": 3}')
    )


def test_a_declared_parameter_finds_its_name() -> None:
    tools = (tool("f", "from", "max-results"),)
    found = read_every_way("[f(from_='a', max_results='b')]", tools, "pythonic")
    assert found == calls(("f", '{"from": "a", "max-results": "b"}'))
