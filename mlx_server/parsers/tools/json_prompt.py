"""Tools as JSON schemas, calls and results between tags."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_server.engine.sequence import ToolCall
from mlx_server.parsers.tools.call import Tools, to_json
from mlx_server.parsers.tools.json_tools import tool_call_end, tool_call_start

INTRODUCTION = f"""\
You have the tools listed below, one JSON object a line. To use one, write

{tool_call_start}
{{"name": "the name of the tool", "arguments": {{"a parameter": "its value"}}}}
{tool_call_end}

with arguments that fit the tool's parameters. Write one such block for every call, then end your \
turn: each result comes back between <tool_response> and </tool_response>. When you need no tool, \
answer in plain text."""


class JsonPrompt:
    result_marks = ("<tool_response>\n", "\n</tool_response>")

    def describe(self, tools: Tools) -> str:
        lines = "\n".join(to_json(tool["function"]) for tool in tools)
        return f"{INTRODUCTION}\n\n<tools>\n{lines}\n</tools>"

    def calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(
            f"{tool_call_start}\n"
            f"{to_json({'name': call.name, 'arguments': dict(call.arguments)})}\n"
            f"{tool_call_end}"
            for call in calls
        )
