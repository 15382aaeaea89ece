"""The grammar of calls in Python, whose arguments are literals."""

from __future__ import annotations

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import Tools, to_json
from mlx_server.parsers.tools.python_literal import literal
from mlx_server.parsers.tools.python_names import PythonFunction, python_functions
from mlx_server.parsers.tools.value_rule import ValueRule
from mlx_server.parsers.tools.value_schema import ValueSchema, arguments_of

TEXT_BOUNDS = ("minLength", "maxLength", "pattern", "format")


class PythonRule(ValueRule):
    """Strings and numbers are those of JSON, which Python reads the same."""

    comma = '", "'
    colon = '": "'

    def arguments(self, function: PythonFunction, schema: ValueSchema) -> str:
        members = list(schema.members())
        python = function.spelled(name for name, _ in members)
        keywords = [
            (f'{self.grammar.literal(python[name])} "=" {self.value(value)}', name)
            for name, value in members
        ]
        required = schema.required()
        return self.in_order([(text, name in required) for text, name in keywords], "(", ")")

    def string(self, schema: ValueSchema) -> str:
        bounds = {name: schema.plain[name] for name in TEXT_BOUNDS if name in schema.plain}
        return self.grammar.json({"type": "string", **bounds})

    def scalar(self, kind: str, schema: ValueSchema) -> str:
        match kind:
            case "boolean":
                return self.grammar.one_of('"True"', '"False"')
            case "null":
                return '"None"'
            case _:
                return super().scalar(kind, schema)

    def key(self, key: str) -> str:
        return self.grammar.literal(to_json(key))

    def any_key(self) -> str:
        return self.grammar.json({"type": "string"})

    def written(self, value: object) -> str:
        return self.grammar.literal(literal(value))


def python_calls(grammar: LarkGrammar, tools: Tools, separator: str, is_parallel: bool) -> str:
    """One call, or one or more with the separator between them."""
    rule = PythonRule(grammar)
    schemas = arguments_of(tools)
    calls = [
        f"{grammar.literal(python)} {rule.arguments(function, schemas[function.name])}"
        for python, function in python_functions(tools).items()
    ]
    call = grammar.rule(grammar.one_of(*calls))
    return f"{call} ({grammar.literal(separator)} {call})*" if is_parallel else call
