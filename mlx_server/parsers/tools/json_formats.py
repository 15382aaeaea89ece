"""The formats whose calls are objects of JSON, in a list or in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools import json_tools
from mlx_server.parsers.tools.call import (
    BlockReader,
    ParsedCall,
    Tools,
    parameters_of,
    read_block,
    to_json,
)
from mlx_server.parsers.tools.json_block import JsonBlockReader, JsonForm
from mlx_server.parsers.tools.json_call import ARGUMENTS, NAME
from mlx_server.parsers.tools.tool_format import CallsRule, MakeReader, ToolFormat

COHERE_KEYS = {"tool_name": NAME, "name": NAME, "parameters": ARGUMENTS, "arguments": ARGUMENTS}
# keys, NAME and ARGUMENTS among them, with what stands between them as a model writes it
USUAL_OBJECT = '{"name": NAME, "arguments": ARGUMENTS}'
LLAMA_OBJECT = '{"name": NAME, "parameters": ARGUMENTS}'

LLAMA = JsonForm("<|python_tag|>", "", separators=";,")
GRANITE = JsonForm("<|tool_call|>", "")
COHERE = JsonForm("<|START_ACTION|>", "<|END_ACTION|>", COHERE_KEYS)
XLAM = JsonForm("```json", "```", only_declared=True)


def reader_of(form: JsonForm) -> MakeReader:
    return lambda tools: JsonBlockReader(form, tools)


def bare_reader_of(form: JsonForm) -> MakeReader:
    """What begins without a marker is a call only of a tool that exists."""
    return reader_of(replace(form, start="", end="", only_declared=True))


def json_format(
    form: JsonForm,
    calls_rule: CallsRule,
    *,
    other_starts: Mapping[str, MakeReader] | None = None,
    bare_starts: str = "",
) -> ToolFormat:
    def make_reader(tools: Tools) -> BlockReader:
        return JsonBlockReader(form, tools)

    def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
        return read_block(make_reader(tools), text + form.end)

    return ToolFormat(
        form.start,
        form.end,
        parse_tool_call,
        make_reader,
        calls_rule,
        other_starts or {},
        dict.fromkeys(bare_starts, bare_reader_of(form)),
    )


def one_call(grammar: LarkGrammar, tools: Tools, written: str) -> str:
    """A rule for one object, which is `written` with the words NAME and ARGUMENTS in it."""
    before, after = written.split("ARGUMENTS")
    calls = (
        f"{grammar.literal(before.replace('NAME', to_json(name)))} {grammar.json(schema)} "
        f"{grammar.literal(after)}"
        for name, schema in parameters_of(tools)
    )
    return grammar.rule(grammar.one_of(*calls))


def in_a_row(call: str, separator: str, is_parallel: bool) -> str:
    return f"{call} ({separator} {call})*" if is_parallel else call


def list_of(grammar: LarkGrammar, call: str, is_parallel: bool) -> str:
    return f'"[" {in_a_row(call, grammar.literal(", "), is_parallel)} "]"'


def llama_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    """With the tag or without it: most prompts ask for the object alone."""
    calls = in_a_row(one_call(grammar, tools, LLAMA_OBJECT), grammar.literal("; "), is_parallel)
    calls = grammar.rule(calls)
    return grammar.one_of(f"{grammar.literal(LLAMA.start)} {calls}", calls)


def granite_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    call = one_call(grammar, tools, USUAL_OBJECT)
    return f"{grammar.literal(GRANITE.start)} {list_of(grammar, call, is_parallel)}"


def xlam_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    return list_of(grammar, one_call(grammar, tools, USUAL_OBJECT), is_parallel)


def cohere_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    call = one_call(grammar, tools, '", "tool_name": NAME, "parameters": ARGUMENTS}')
    head = grammar.literal('{"tool_call_id": "')
    numbered = grammar.rule(f"{head} /[0-9]{{1,4}}/ {call}")
    separator = grammar.literal(",\n    ")
    calls = in_a_row(numbered, separator, is_parallel)
    start, end = grammar.literal(f"{COHERE.start}[\n    "), grammar.literal(f"\n]{COHERE.end}")
    return f"{start} {calls} {end}"


JSON_FORMATS: Mapping[str, ToolFormat] = {
    "llama3": json_format(LLAMA, llama_rule, bare_starts="{"),
    "granite": json_format(
        GRANITE, granite_rule, other_starts={json_tools.tool_call_start: json_tools.make_reader}
    ),
    "cohere": json_format(COHERE, cohere_rule),
    "xlam": json_format(XLAM, xlam_rule, bare_starts="["),
}
