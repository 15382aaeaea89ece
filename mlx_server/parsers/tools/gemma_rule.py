"""The grammar of the values in Gemma's calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import to_json
from mlx_server.parsers.tools.text_pattern import text_pattern
from mlx_server.parsers.tools.value_schema import SCALARS, ValueSchema

BARE_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
KEY = r"/[A-Za-z_][A-Za-z0-9_.-]*/"
NOTHING = '""'
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class GemmaRule:
    def __init__(self, grammar: LarkGrammar, quote: str) -> None:
        self._grammar = grammar
        self._quote = quote
        self._any = ""
        self._definitions: dict[str, str] = {}

    def arguments(self, schema: ValueSchema) -> str:
        members = list(schema.members())
        return self._members(schema, members) if members else '"{" "}"'

    def value(self, schema: ValueSchema) -> str:
        reference = schema.reference
        if reference is None:
            return self._value(schema)
        if reference not in self._definitions:
            # a definition may name itself
            self._grammar.recursive(lambda name: self._define(reference, name, schema))
        return self._definitions[reference]

    def _define(self, reference: str, name: str, schema: ValueSchema) -> str:
        self._definitions[reference] = name
        return self._value(schema)

    def _value(self, schema: ValueSchema) -> str:
        plain = schema.plain
        if isinstance(values := plain.get("enum"), list):
            return self._grammar.one_of(*map(self._written, values))
        if "const" in plain:
            return self._written(plain["const"])
        if branches := schema.branches():
            return self._grammar.one_of(*map(self.value, branches))
        if not schema.is_typed:
            return self._any_value()
        types = sorted(schema.types - ({"integer"} if "number" in schema.types else set()))
        return self._grammar.one_of(*(self._typed(kind, schema) for kind in types))

    def _typed(self, kind: str, schema: ValueSchema) -> str:
        if kind == "string":
            return self._string(text_pattern(schema))
        if kind == "array":
            return self._list(schema)
        if kind == "object":
            return self._object(schema)
        bounds = {name: schema.plain[name] for name in BOUNDS if name in schema.plain}
        return self._grammar.json({"type": kind, **bounds})

    def _string(self, pattern: str | None = None) -> str:
        text = self._grammar.text_up_to(self._quote, *([pattern] if pattern else []))
        return f"{self._grammar.literal(self._quote)} {text}"

    def _list(self, schema: ValueSchema) -> str:
        item = self._grammar.rule(self.value(schema.items()))
        least = count(schema.plain.get("minItems")) or 0
        most = count(schema.plain.get("maxItems"))
        if most == 0:
            return '"[" "]"'
        more = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else most - 1}}}'
        items = f"{item} {more}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _object(self, schema: ValueSchema) -> str:
        members = list(schema.members())
        if members:
            return self._members(schema, members)
        if schema.plain.get("additionalProperties", True) is False:
            return '"{" "}"'
        return self._free_object(self._grammar.rule(self.value(schema.member(""))))

    def _members(self, schema: ValueSchema, members: Sequence[tuple[str, ValueSchema]]) -> str:
        required = schema.required()
        first = later = NOTHING  # what can follow when none, or some, were written
        for key, value in reversed(members):
            member = self._grammar.rule(f'{self._key(key)} ":" {self.value(value)}')
            if key in required:
                first, later = f"{member} {later}", f'"," {member} {later}'
            else:
                first = self._grammar.one_of(f"{member} {later}", first)
                later = f'("," {member})? {later}'
            first, later = self._grammar.rule(first), self._grammar.rule(later)
        return f'"{{" {first} "}}"'

    def _free_object(self, value: str) -> str:
        member = f'{KEY} ":" {value}'
        return f'"{{" ({member} ("," {member})*)? "}}"'

    def _key(self, key: str) -> str:
        return self._grammar.literal(self._key_text(key))

    def _any_value(self) -> str:
        if not self._any:
            self._any = self._grammar.recursive(self._any_body)
        return self._any

    def _any_body(self, name: str) -> str:
        scalars = [self._grammar.json({"type": kind}) for kind in sorted(SCALARS - {"string"})]
        items = f'"[" ({name} ("," {name})*)? "]"'
        return self._grammar.one_of(*scalars, self._string(), items, self._free_object(name))

    def _written(self, value: object) -> str:
        return self._grammar.literal(self._text_of(value))

    def _text_of(self, value: object) -> str:
        match value:
            case str():
                return f"{self._quote}{value}{self._quote}"
            case Mapping():
                members = (f"{self._key_text(k)}:{self._text_of(v)}" for k, v in value.items())
                return "{" + ",".join(members) + "}"
            case Sequence():
                return "[" + ",".join(map(self._text_of, value)) + "]"
            case _:
                return to_json(value)

    def _key_text(self, key: str) -> str:
        return key if BARE_KEY.fullmatch(key) else f"{self._quote}{key}{self._quote}"


def count(value: object) -> int | None:
    return value if isinstance(value, int) else None
