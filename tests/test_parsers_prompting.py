from __future__ import annotations

import ast
import json
from typing import Any

import jinja2
import pytest

from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    ImagePart,
    TextPart,
    ToolCall,
)
from mlx_server.parsers.tools import TOOL_FORMATS
from mlx_server.parsers.tools.prompting import describe_in_prompt
from tests.parser_cuts import tool
from tests.tiny import templates

FORMATS = ["gemma_code", "json_tools"]  # those that our own prompts teach
RESULT_MARKS = {
    "gemma_code": ("```tool_output\n", "\n```"),
    "json_tools": ("<tool_response>\n", "\n</tool_response>"),
}
ADD = tool("add", "a", "b")
IMAGE = ImagePart("data:,", "messages.0.content.0")


def message(role: Any, *content: str | ContentPart, **fields: Any) -> ChatMessage:
    parts = tuple(TextPart(part) if isinstance(part, str) else part for part in content)
    return ChatMessage(role, parts, **fields)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(f"call_{name}", name, arguments)


def result(name: str, *content: str | ContentPart) -> ChatMessage:
    return message("tool", *content, tool_call_id=f"call_{name}")


def describe(*messages: ChatMessage, tool_format: str, tools: Any = ()) -> list[ChatMessage]:
    described = describe_in_prompt(ChatPrompt(messages, tuple(tools)), tool_format)
    assert described.tools == ()
    assert all(not m.tool_calls and m.role != "tool" for m in described.messages)
    return list(described.messages)


def text(message: ChatMessage) -> str:
    (part,) = message.content
    assert isinstance(part, TextPart)
    return part.text


def declared(properties: Any, required: Any = (), **function: Any) -> Any:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": "f", "parameters": schema, **function}}


def gemma_signature(tool: Any) -> str:
    (system, _) = describe(message("user", "hi"), tool_format="gemma_code", tools=[tool])
    code = text(system).partition("```python\n")[2].removesuffix("\n```")
    ast.parse(code)
    return code


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_conversation_without_tools_is_left_alone(tool_format: str) -> None:
    prompt = ChatPrompt((message("system", "s"), message("user", "a", IMAGE), message("assistant")))
    assert describe_in_prompt(prompt, tool_format) is prompt


@pytest.mark.parametrize("tool_format", FORMATS)
def test_tools_are_described_in_a_system_message(tool_format: str) -> None:
    system, user = describe(message("user", "hi"), tool_format=tool_format, tools=[ADD])
    assert system.role == "system" and user == message("user", "hi")
    assert "add" in text(system)
    assert TOOL_FORMATS[tool_format].tool_call_start in text(system)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_the_client_s_own_system_text_comes_first_and_in_one_part(tool_format: str) -> None:
    system, _ = describe(
        message("system", "Be brief.", "Be kind."),
        message("user", "hi"),
        tool_format=tool_format,
        tools=[ADD],
    )
    assert text(system).startswith("Be brief.\nBe kind.\n\n")
    assert "add" in text(system)


def test_json_descriptions_hold_the_functions_as_they_were_sent() -> None:
    tools = [ADD, declared({"é": {"enum": ["<", 1]}})]
    system, _ = describe(message("user", "hi"), tool_format="json_tools", tools=tools)
    lines = text(system).partition("<tools>\n")[2].splitlines()[:-1]
    assert [json.loads(line) for line in lines] == [tool["function"] for tool in tools]


def test_gemma_descriptions_are_python_signatures() -> None:
    tool = declared(
        {
            "city": {"type": "string", "description": "Where."},
            "days": {"type": "integer", "default": 3},
            "unit": {"enum": ["C", "F"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "x": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        ["city"],
        description="Weather of a city.",
    )
    assert gemma_signature(tool) == (
        'def f(city: str, days: int = 3, unit: Literal["C", "F"] = ..., tags: list[str] = ..., '
        "x: float | None = ...):\n"
        '    """Weather of a city.\n\n'
        "    Args:\n"
        "        city: Where.\n"
        '    """'
    )


def test_a_required_parameter_behind_an_optional_one_keeps_its_place() -> None:
    code = gemma_signature(declared({"a": {"type": "string"}, "b": {"type": "boolean"}}, ["b"]))
    assert code == "def f(*, a: str = ..., b: bool):\n    ..."


def test_what_a_signature_cannot_say_stands_behind_the_description() -> None:
    nested = {"type": "object", "description": "Which.", "properties": {"n": {"minimum": 1}}}
    code = gemma_signature(declared({"o": nested}, description="Does it."))
    assert 'o: Which. (JSON schema: {"properties": {"n": {"minimum": 1}}})' in code


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f"}},
        declared({}),
        declared({"a": True, "b": {}, "c": {"type": ["string", "null"]}, "d": {"type": 7}}),
        declared({"class": {"type": "string"}, "max-n": {"$ref": "#/$defs/N"}}),
        {"type": "function", "function": {"name": "f", "parameters": {"anyOf": [{"x": 1}]}}},
        {"type": "function", "function": {"name": "f", "parameters": {"properties": []}}},
    ],
)
def test_odd_schemas_still_give_python(tool: Any) -> None:
    assert gemma_signature(tool).startswith("def f(")


def test_names_that_python_cannot_spell_are_spelled_alike_in_signature_and_history() -> None:
    odd = tool("get-weather", "from")
    system, _, assistant = describe(
        message("user", "hi"),
        message("assistant", tool_calls=(call("get-weather", **{"from": "x", "to-day": 1}),)),
        tool_format="gemma_code",
        tools=[odd],
    )
    assert "def get_weather(from_: str = ...):" in text(system)
    assert text(assistant) == '```tool_code\nget_weather(from_="x", to_day=1)\n```'


@pytest.mark.parametrize("tool_format", FORMATS)
def test_b026_calls_and_results_become_text_and_absent_content_nothing(tool_format: str) -> None:
    _, assistant, user = describe(
        message("user", "2+3?"),
        message("assistant", tool_calls=(call("add", a=2, b=3),)),
        result("add", "5"),
        tool_format=tool_format,
    )
    before, after = RESULT_MARKS[tool_format]
    assert assistant.role == "assistant" and "add" in text(assistant)
    assert user == message("user", f"{before}5{after}")
    assert "None" not in text(assistant)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_b033_calls_of_the_history_are_written_as_the_parser_reads_them(tool_format: str) -> None:
    calls = (
        call("add", a='it\'s "x"\n\\d é', b=[1, {"c": None, "d": -2.5}]),
        call("add", b={}, a=True),
    )
    history = message("assistant", "Let me see.", tool_calls=calls)
    _, assistant = describe(message("user", "hi"), history, tool_format=tool_format)
    form = TOOL_FORMATS[tool_format]
    content, *blocks = text(assistant).split(form.tool_call_start)
    assert content == "Let me see.\n\n"
    parsed = [
        read
        for block in blocks
        for read in form.parse_tool_call(block.rstrip().removesuffix(form.tool_call_end), [ADD])
    ]
    assert [(p.name, json.loads(p.arguments)) for p in parsed] == [
        (c.name, c.arguments) for c in calls
    ]


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("later", [(), (message("assistant", "ok"),)], ids=["last", "followed"])
def test_results_in_a_row_share_a_turn_in_the_order_of_their_calls(
    tool_format: str, later: tuple[ChatMessage, ...]
) -> None:
    _, _, user, *_ = describe(
        message("user", "hi"),
        message("assistant", tool_calls=(call("f"), call("g"))),
        result("g", "of g", "second line"),
        result("f", "of f"),
        result("unknown", ""),
        *later,
        tool_format=tool_format,
    )
    before, after = RESULT_MARKS[tool_format]
    results = ["of f", "of g\nsecond line", ""]
    assert text(user) == "\n\n".join(f"{before}{result}{after}" for result in results)


@pytest.mark.parametrize("tool_format", FORMATS)
def test_a_user_turn_behind_a_result_joins_it_so_that_roles_alternate(tool_format: str) -> None:
    *_, user, assistant, last = describe(
        message("user", "hi"),
        message("assistant", tool_calls=(call("f"),)),
        result("f", "r"),
        message("user", "and?", IMAGE, "this"),
        message("assistant", "ok"),
        message("user", "bye"),
        tool_format=tool_format,
    )
    before, after = RESULT_MARKS[tool_format]
    assert user == message("user", f"{before}r{after}\n\nand?", IMAGE, "this")
    assert (assistant, last) == (message("assistant", "ok"), message("user", "bye"))


@pytest.mark.parametrize("tool_format", FORMATS)
def test_images_keep_their_places(tool_format: str) -> None:
    user, assistant, shown = describe(
        message("user", "a", IMAGE, "b", IMAGE),
        message("assistant", tool_calls=(call("f"),)),
        result("f", "r", IMAGE, "s"),
        tool_format=tool_format,
    )
    before, after = RESULT_MARKS[tool_format]
    assert user == message("user", "a", IMAGE, "b", IMAGE)
    assert shown == message("user", f"{before}r", IMAGE, f"s{after}")


@pytest.mark.parametrize("tool_format", FORMATS)
def test_user_turns_of_the_client_are_not_joined(tool_format: str) -> None:
    described = describe(
        message("user", "a"), message("user", "b"), tool_format=tool_format, tools=[ADD]
    )
    assert described[1:] == [message("user", "a"), message("user", "b")]


@pytest.mark.parametrize("tool_format", FORMATS)
def test_names_reasoning_and_template_settings_stay(tool_format: str) -> None:
    history = message(
        "assistant", "t", tool_calls=(call("f"),), name="bot", reasoning_content="why"
    )
    prompt = ChatPrompt((message("user", "hi", name="ann"), history), (), {"enable_thinking": True})
    described = describe_in_prompt(prompt, tool_format)
    user, assistant = described.messages
    assert user.name == "ann"
    assert (assistant.name, assistant.reasoning_content) == ("bot", "why")
    assert described.template_kwargs == {"enable_thinking": True}


def refuse(reason: str) -> None:
    raise jinja2.TemplateError(reason)


def test_b026_a_template_that_wants_alternating_roles_takes_the_whole_conversation() -> None:
    described = describe(
        message("system", "Be brief."),
        message("user", "2+3?"),
        message("assistant", tool_calls=(call("add", a=2, b=3), call("add", a=5, b=8))),
        result("add", "five"),
        result("add", "thirteen"),
        message("user", "and then?"),
        tool_format="gemma_code",
        tools=[ADD],
    )
    template = jinja2.Environment().from_string(templates.GEMMA3)
    rendered = template.render(
        messages=[{"role": m.role, "content": text(m)} for m in described],
        raise_exception=refuse,
        add_generation_prompt=True,
    )
    told = ["Be brief.", "def add(", "2+3?", "add(a=2, b=3)", "five", "thirteen", "and then?"]
    places = [rendered.find(piece) for piece in told]
    assert -1 not in places and places == sorted(places)
    assert "None" not in rendered


def test_a_deep_schema_is_described_in_no_time() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(60):
        schema = {"type": ["array", "array", "null"], "items": schema}
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}},
    }
    prompt = ChatPrompt((ChatMessage("user", (TextPart("hi"),)),), (tool,))
    described = describe_in_prompt(prompt, "gemma_code")
    assert "list[list[list[" in str(described.messages)
