"""Calls as JSON between `<tool_call>` tags: one object, several, or a list of them."""

from __future__ import annotations

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import (
    ParsedCall,
    Tools,
    parameters_of,
    read_block,
    to_json,
)
from mlx_server.parsers.tools.json_block import JsonBlockReader, JsonForm

tool_call_start = "<tool_call>"
tool_call_end = "</tool_call>"


def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
    """The calls in the text between the tags. Raises MalformedCall if any of it is no call."""
    return read_block(make_reader(tools), text + tool_call_end)


def make_reader(_tools: Tools) -> JsonBlockReader:
    return JsonBlockReader(JsonForm(tool_call_start, tool_call_end))


def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    calls = [
        " ".join(
            (
                grammar.literal(f'{tool_call_start}\n{{"name": {to_json(name)}, "arguments": '),
                grammar.json(schema),
                grammar.literal(f"}}\n{tool_call_end}"),
            )
        )
        for name, schema in parameters_of(tools)
    ]
    call = grammar.rule(grammar.one_of(*calls))
    return f'{call} ("\\n" {call})*' if is_parallel else call
