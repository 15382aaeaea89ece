"""What one call in Python's syntax says: read, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from mlx_server.parsers.tools.call import MalformedCall, ParsedCall, to_json
from mlx_server.parsers.tools.python_names import PythonFunction
from mlx_server.parsers.tools.python_strings import STRINGS_OF_LINES, on_one_line

FAULTS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
# Templates show values within lists and objects as JSON.
JSON_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}


class JsonWords(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(JSON_WORDS[node.id]) if node.id in JSON_WORDS else node


def call_with(arguments: str, function: PythonFunction) -> ParsedCall:
    """`arguments` is what stands between the brackets. Raises MalformedCall if it is no such."""
    source = f"f({STRINGS_OF_LINES.sub(on_one_line, arguments)}\n)"
    try:
        call = ast.parse(source, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise MalformedCall
        return parsed(call, function)
    except FAULTS as error:
        raise MalformedCall from error


def parsed(call: ast.Call, function: PythonFunction) -> ParsedCall:
    """Raises any of FAULTS if the call's arguments are no plain values of the function's."""
    if len(call.args) > len(function.parameters):
        raise MalformedCall
    arguments: dict[str, object] = {}
    for name, value in named_values(call, function):
        if name in arguments:
            raise MalformedCall
        arguments[name] = ast.literal_eval(JsonWords().visit(value))
    # `...` is how the signature says that a parameter has a default
    given = {name: value for name, value in arguments.items() if value is not ...}
    return ParsedCall(function.name, to_json(given))


def named_values(call: ast.Call, function: PythonFunction) -> Iterator[tuple[str, ast.expr]]:
    yield from zip(function.parameters.values(), call.args, strict=False)
    for keyword in call.keywords:
        if keyword.arg is None:
            raise MalformedCall
        yield function.parameter(keyword.arg), keyword.value
