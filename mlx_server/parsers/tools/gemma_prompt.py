"""Tools as Python functions, calls as code and results in fences: the form Gemma 3 was taught."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_server.engine.sequence import ToolCall
from mlx_server.parsers.tools.call import Tools
from mlx_server.parsers.tools.gemma_code import tool_call_end, tool_call_start
from mlx_server.parsers.tools.python_literal import literal
from mlx_server.parsers.tools.python_names import PythonFunction, python_functions
from mlx_server.parsers.tools.signatures import signature

INTRODUCTION = f"""\
You can call the Python functions below; they run elsewhere, not in your answer. To call them, \
write a code block that holds one call a line and nothing else, with every argument by its name \
and as a plain value; leave out what has a default that fits:

{tool_call_start}
function_name(parameter="value", count=2)
{tool_call_end}

Then end your turn: what the functions return comes back in a ```tool_output block. When you need \
no function, answer in plain text."""


class GemmaPrompt:
    result_marks = ("```tool_output\n", "\n```")

    def __init__(self, tools: Tools) -> None:
        self._functions = python_functions(tools)
        self._python_names = {f.name: python for python, f in self._functions.items()}

    def describe(self, tools: Tools) -> str:
        declared = {tool["function"]["name"]: tool["function"] for tool in tools}
        signatures = "\n\n".join(
            signature(python, function, declared[function.name])
            for python, function in self._functions.items()
        )
        return f"{INTRODUCTION}\n\n```python\n{signatures}\n```"

    def calls(self, calls: Sequence[ToolCall]) -> str:
        lines = "\n".join(map(self._call, calls))
        return f"{tool_call_start}\n{lines}\n{tool_call_end}"

    def _call(self, call: ToolCall) -> str:
        # a tool that is no longer declared keeps its name, whatever Python makes of it
        python = self._python_names.get(call.name, call.name)
        function = self._functions.get(python) or PythonFunction(call.name)
        names = function.spelled(call.arguments)
        arguments = (f"{names[name]}={literal(value)}" for name, value in call.arguments.items())
        return f"{python}({', '.join(arguments)})"
