"""Calls as Python between ```` ```tool_code ```` fences: read, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import MalformedCall, ParsedCall, Tools
from mlx_server.parsers.tools.code_fence import FENCE, FenceFinder
from mlx_server.parsers.tools.python_call import FAULTS, parsed
from mlx_server.parsers.tools.python_names import PythonFunction, python_functions
from mlx_server.parsers.tools.python_rule import python_calls
from mlx_server.parsers.tools.python_strings import STRINGS, with_legal_escapes
from mlx_server.parsers.tools.whole_block import WholeBlockReader

tool_call_start = "```tool_code"
tool_call_end = FENCE

Functions = Mapping[str, PythonFunction]


def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
    """The calls of the block's lines. Raises MalformedCall if any of it is no call of a tool."""
    try:
        body = ast.parse(STRINGS.sub(with_legal_escapes, text).strip()).body
        functions = python_functions(tools)
        calls = [call for line in body for call in calls_of(line, functions)]
    except FAULTS as error:
        raise MalformedCall from error
    if not calls:
        raise MalformedCall
    return calls


def make_reader(tools: Tools) -> WholeBlockReader:
    return WholeBlockReader(
        (tool_call_start, tool_call_end), parse_behind_fence, tools, FenceFinder()
    )


def parse_behind_fence(text: str, tools: Tools) -> list[ParsedCall]:
    if re.match(r"\w", text):  # the fence names another language
        raise MalformedCall
    return parse_tool_call(text, tools)


def calls_of(line: ast.stmt, functions: Functions) -> Iterator[ParsedCall]:
    match line:
        case ast.Expr(value=ast.Call() as call) | ast.Assign(value=ast.Call() as call):
            return unwrapped(call, functions)
        case ast.AnnAssign(value=ast.Call() as call):
            return unwrapped(call, functions)
        case _:
            raise MalformedCall


def unwrapped(call: ast.Call, functions: Functions) -> Iterator[ParsedCall]:
    match call:
        case ast.Call(func=ast.Name(id="print"), args=[_, *_], keywords=[]) if (
            "print" not in functions
        ):
            for argument in call.args:
                if not isinstance(argument, ast.Call):
                    raise MalformedCall
                yield from unwrapped(argument, functions)
        case _:
            yield parsed(call, function_of(call, functions))


def function_of(call: ast.Call, functions: Functions) -> PythonFunction:
    function = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if function is None:
        raise MalformedCall
    return function


def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    start, end = map(grammar.literal, (f"{tool_call_start}\n", f"\n{tool_call_end}"))
    calls = python_calls(grammar, tools, "\n", is_parallel)
    return f"{start} {calls} {end}"
