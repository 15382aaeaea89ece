"""What single formats in tags have of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.parser_cuts import Result, read_every_way
from tests.tagged_calls import NS


def declared(**properties: Any) -> list[dict[str, Any]]:
    schema = {"type": "object", "properties": properties, "$defs": {"Word": {"type": "string"}}}
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


STRING = {"type": "string"}


def only_call(name: str, text: str, tools: list[dict[str, Any]]) -> Any:
    result = read_every_way(text, tools, name)
    ((called, arguments),) = result.calls
    assert (called, result.content) == ("f", "")
    return json.loads(arguments)


def qwen(value: str, schema: Any) -> Any:
    text = f"<tool_call><function=f><parameter=x>{value}</parameter></function></tool_call>"
    return only_call("qwen3_coder", text, declared(x=schema))["x"]


def test_b075_xml_types() -> None:
    tools = declared(
        zip=STRING, n={"type": "integer"}, on={"type": "boolean"}, xs={"type": "array"}
    )
    text = (
        "<tool_call><function=f><parameter=zip>02134</parameter><parameter=n>5.0</parameter>"
        "<parameter=on>True</parameter><parameter=xs>[1, 2]</parameter></function></tool_call>"
    )
    assert read_every_way(text, tools, "qwen3_coder").calls == (
        ("f", '{"zip": "02134", "n": 5, "on": true, "xs": [1, 2]}'),
    )


@pytest.mark.parametrize("text", ["007", "true", "null", " x ", "", "\n\nx\n\n", '"q"', "{}"])
def test_b075_strings_are_kept_but_for_the_breaks_of_the_format(text: str) -> None:
    assert qwen(f"\n{text}\n", STRING) == text
    assert qwen(f"\n{text}\n", {"$ref": "#/$defs/Word"}) == text
    glm = f"<tool_call>f<arg_key>x</arg_key><arg_value>{text}</arg_value></tool_call>"
    assert only_call("glm4_moe", glm, declared(x=STRING)) == {"x": text}


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {}, 5),
        ("five", {}, "five"),
        ('{"a": [1]}', True, {"a": [1]}),
        ("007", {}, "007"),
        ("7", {"type": ["string", "null"]}, "7"),
        ("null", {"type": ["string", "null"]}, None),
        ("nullable", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "nullable"),
        ("12 apples", {"type": ["string", "integer"]}, "12 apples"),
        ("12", {"type": ["string", "integer"]}, 12),
        ("[1, 2", {"type": ["string", "array"]}, "[1, 2"),
        ("abc", {"type": "integer"}, "abc"),
        ("2.5", {"type": "number"}, 2.5),
        ("2.5", {"type": "integer"}, 2.5),
        ("{'a': None, 're': '\\d'}", {"type": "object"}, {"a": None, "re": "\\d"}),
        (r'{"re": "\d"}', {"type": "object"}, {"re": "\\d"}),
        ("FALSE", {"type": "boolean"}, "FALSE"),
        ("red", {"enum": ["red", "blue"]}, "red"),
        ("2", {"enum": [1, 2]}, 2),
        ("5", {"allOf": [{"type": "string"}]}, "5"),
        ("5", {"$ref": "#/$defs/Missing"}, 5),
    ],
)
def test_b075_values_are_what_the_schema_allows_else_json_else_strings(
    text: str, schema: Any, value: object
) -> None:
    assert qwen(text, schema) == value
    assert qwen(f"\n{text}\n", schema) == value


def test_an_end_mark_in_a_string_of_json_does_not_end_the_value() -> None:
    assert qwen('["</parameter>", "b"]', {"type": "array"}) == ["</parameter>", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "<function=f>\n<parameter=x>\na\n</parameter>\n</function>",
        "<function=f>\n<parameter=x>\na\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=x>\na\n</parameter>\n</tool_call>",
        '<tool_call><function = "f" ><parameter = x>a</parameter></function></tool_call>',
        "<function=f><parameter=x>a</parameter></tool_call>",
    ],
    ids=["no block", "end of the block alone", "no end of the call", "loose heads", "one end"],
)
def test_qwen_may_leave_out_what_is_not_needed(text: str) -> None:
    assert only_call("qwen3_coder", text, declared(x=STRING)) == {"x": "a"}


def test_qwen_calls_without_a_block_and_with_one_may_follow_each_other() -> None:
    text = "<function=f>\n</function>\n<tool_call>\n<function=f>\n</function>\n</tool_call>"
    result = read_every_way(text, declared(), "qwen3_coder")
    assert (result.calls, result.content) == ((("f", "{}"), ("f", "{}")), "")


@pytest.mark.parametrize(
    "text",
    [
        "Write <function=g> and </function> around it.",
        "#include <functional> and <function",
        "use <tool_call> or <function=x> here?",
        "<function=f without an end\nand a line",
    ],
)
def test_b092_prose_about_the_format_is_no_call(text: str) -> None:
    assert read_every_way(text, declared(x=STRING), "qwen3_coder") == Result(text, (), ())


def test_a_head_that_never_ends_is_held_no_longer_than_a_name_can_be() -> None:
    text = f"<tool_call><function={'x' * 2000} y"
    pieces = read_every_way(text[:40], declared(), "qwen3_coder")
    assert pieces.content == text[:40]
    assert read_every_way(text, declared(), "qwen3_coder").content == text


def test_b073_a_glm_call_is_read_though_its_value_is_no_json() -> None:
    text = "<tool_call>f<arg_key>p</arg_key><arg_value>**/*.md</arg_value></tool_call>"
    assert only_call("glm4_moe", text, declared()) == {"p": "**/*.md"}


def test_minimax_heads_may_be_quoted_in_other_ways() -> None:
    text = (
        "<minimax:tool_call><invoke name='f'><parameter name=x>1</parameter></invoke>"
        "</minimax:tool_call>"
    )
    assert only_call("minimax_m2", text, declared(x=STRING)) == {"x": "1"}


@pytest.mark.parametrize(("says", "value"), [("true", "5"), ("false", 5)])
def test_deepseek_says_of_a_value_whether_it_is_a_string(says: str, value: object) -> None:
    p = "｜DSML｜"
    text = (
        f'<{p}tool_calls><{p}invoke name="f"><{p}parameter name="x" string="{says}">5'
        f"</{p}parameter></{p}invoke></{p}tool_calls>"
    )
    assert only_call("deepseek_v4", text, declared()) == {"x": value}
    assert only_call("deepseek_v4", text, declared(x=STRING)) == {"x": "5"}


def minicpm(value: str, schema: Any = STRING) -> Any:
    text = f'<function name="f"><param name="x">{value}</param></function>'
    return only_call("minicpm5", text, declared(x=schema))["x"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("plain  text ", "plain  text "),
        ("a &lt;b&gt; &amp;amp; &quot;c&apos; &#233;&#x1F600;", "a <b> &amp; \"c' é😀"),
        ("R&D & more &nbsp; &lt", "R&D & more &nbsp; &lt"),
        ("<![CDATA[a </param> &amp; <b>]]>", "a </param> &amp; <b>"),
        ("a<![CDATA[ ] ]] ]]>b<![CDATA[c]]>&", "a ] ]] bc&"),
    ],
)
def test_minicpm_values_are_text_of_xml(written: str, value: str) -> None:
    assert minicpm(written) == value


def test_minicpm_values_have_their_types() -> None:
    assert minicpm("<![CDATA[[1, {&]]>", {}) == "[1, {&"
    assert minicpm("{'a': True}", {"type": "object"}) == {"a": True}


def m3(value: str, schema: Any) -> Any:
    text = (
        f'{NS}<tool_call>{NS}<invoke name="f">{NS}<x>{value}{NS}</x>{NS}</invoke>{NS}</tool_call>'
    )
    return only_call("minimax_m3", text, declared(x=schema))["x"]


NESTED = f"{NS}<name>007{NS}</name>{NS}<n>7{NS}</n>{NS}<x>{NS}<x>a{NS}</x>{NS}</x>"


@pytest.mark.parametrize(
    ("written", "schema", "value"),
    [
        (NESTED, {"properties": {"name": STRING}}, {"name": "007", "n": 7, "x": {"x": "a"}}),
        (f"{NS}<item>1{NS}</item>\n{NS}<item>a{NS}</item>", {}, [1, "a"]),
        (f"{NS}<item>1{NS}</item>", {"type": "array", "items": STRING}, ["1"]),
        (f"{NS}<v>1{NS}</v>{NS}<v>2{NS}</v>", {"type": "object"}, {"v": [1, 2]}),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("", {"type": "array"}, []),
        ("\n", {"type": "object"}, {}),
        (f"a {NS}<v>1{NS}</v>", {}, f"a {NS}<v>1{NS}</v>"),
        (f"{NS}<v>1", {}, f"{NS}<v>1"),
        (f"{NS}<v>1{NS}</v>", STRING, f"{NS}<v>1{NS}</v>"),
    ],
)
def test_m3_values_may_be_elements(written: str, schema: Any, value: object) -> None:
    assert m3(written, schema) == value


def gemma(arguments: str, tools: list[dict[str, Any]] | None = None) -> Any:
    text = f"<|tool_call>call:f{{{arguments}}}<tool_call|>"
    return only_call("gemma4", text, declared() if tools is None else tools)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("a:1.5,b:-2e3,c:null", {"a": 1.5, "b": -2e3, "c": None}),
        (" a : 1 , b : true ,\n c: [ 1 , x y ] ", {"a": 1, "b": True, "c": [1, "x y"]}),
        ("a:{b:{},c:[]},d:[[],{e:f}]", {"a": {"b": {}, "c": []}, "d": [[], {"e": "f"}]}),
        ('<|"|>odd key:<|"|>:<|"|>}],{:<|"|>', {"odd key:": "}],{:"}),
        ('a:<|"|>x < y <|" z<|"|>,', {"a": 'x < y <|" z'}),
        ('a:<|"|>5<|"|>,b:5', {"a": "5", "b": 5}),
        (
            "units:{temp:C},tags:[a,true,null,1.5]",
            {"units": {"temp": "C"}, "tags": ["a", True, None, 1.5]},
        ),
    ],
)
def test_gemma_values_nest_and_may_be_bare(written: str, value: object) -> None:
    assert gemma(written) == value


def test_b075_gemma_values_have_the_types_of_their_schema() -> None:
    tools = declared(zip=STRING, n={"type": "integer"}, xs={"items": STRING})
    assert gemma('zip:02134,n:<|"|>5<|"|>,xs:[1,2]', tools) == {
        "zip": "02134",
        "n": 5,
        "xs": ["1", "2"],
    }


@pytest.mark.parametrize("call", ["f{}", ":f{}", "call: f {}", "\ncall:f{} call:f{}\n"])
def test_gemma_may_leave_out_the_word_before_a_name(call: str) -> None:
    result = read_every_way(f"<|tool_call>{call}<tool_call|>", declared(), "gemma4")
    assert {named for named, _ in result.calls} == {"f"}
    assert result.content == ""


@pytest.mark.parametrize(
    "arguments",
    ["a", "a:", "a:1,a:2", "a:1]", "a:[1}", "a b", "a:{b", "{}", ",", "a:<b>", '"'[:0] + "a:x{"],
)
def test_b073_gemma_arguments_that_cannot_be_read_are_content(arguments: str) -> None:
    text = f"<|tool_call>call:f{{{arguments}}}<tool_call|> y"
    result = read_every_way(text, declared(), "gemma4")
    assert (result.calls, result.content) == ((), text)


def test_functiongemma_reads_more_than_strings() -> None:
    text = "<start_function_call>call:f{c:<escape>it's {<escape>,n:3}<end_function_call>"
    assert only_call("functiongemma", text, declared()) == {"c": "it's {", "n": 3}
