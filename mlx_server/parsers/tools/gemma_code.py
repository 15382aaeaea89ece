"""Calls as Python between ```` ```tool_code ```` fences: read, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from mlx_server.parsers.tools.call import MalformedCall, ParsedCall, Tools, to_json
from mlx_server.parsers.tools.code_fence import FENCE, FenceFinder
from mlx_server.parsers.tools.python_names import PythonFunction, python_functions
from mlx_server.parsers.tools.whole_block import WholeBlockReader

tool_call_start = "```tool_code"
tool_call_end = FENCE

STRINGS = re.compile(
    r"""(?P<string>
    \"{3} (?:\\.|[^\\])*? \"{3} | '{3} (?:\\.|[^\\])*? '{3}
    | \" (?:\\.|[^"\\\n])* \" | ' (?:\\.|[^'\\\n])* '
    ) | \#[^\n]*""",
    re.VERBOSE | re.DOTALL,
)
BACKSLASH = re.compile(r"\\(.)", re.DOTALL)
LEGAL_ESCAPES = frozenset("\n\\'\"abfnrtv01234567xNuU")

Functions = Mapping[str, PythonFunction]


def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
    """The calls of the block's lines. Raises MalformedCall if any of it is no call of a tool."""
    try:
        body = ast.parse(STRINGS.sub(with_legal_escapes, text).strip()).body
        functions = python_functions(tools)
        calls = [call for line in body for call in calls_of(line, functions)]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
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


def with_legal_escapes(match: re.Match[str]) -> str:
    r"""`"\d"` means a backslash and a letter; Python only warns of it today."""
    has_prefix = match.string[match.start() - 1 : match.start()].isalpha()
    if match["string"] is None or has_prefix:
        return match[0]
    return BACKSLASH.sub(lambda m: m[0] if m[1] in LEGAL_ESCAPES else "\\" + m[0], match[0])


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
            yield parsed(call, functions)


def parsed(call: ast.Call, functions: Functions) -> ParsedCall:
    function = functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
    if function is None or len(call.args) > len(function.parameters):
        raise MalformedCall
    arguments: dict[str, object] = {}
    for name, value in named_values(call, function):
        if name in arguments:
            raise MalformedCall
        arguments[name] = ast.literal_eval(value)
    # `...` is how the signature says that a parameter has a default
    given = {name: value for name, value in arguments.items() if value is not ...}
    return ParsedCall(function.name, to_json(given))


def named_values(call: ast.Call, function: PythonFunction) -> Iterator[tuple[str, ast.expr]]:
    yield from zip(function.parameters.values(), call.args, strict=False)
    for keyword in call.keywords:
        if keyword.arg is None:
            raise MalformedCall
        yield function.parameter(keyword.arg), keyword.value
