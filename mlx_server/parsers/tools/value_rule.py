"""The grammar of a value that its schema allows, in the notation of a tool format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.value_schema import SCALARS, UNDECLARED, ValueSchema

NOTHING = '""'
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class ValueRule(ABC):
    """`comma` and `colon` stand between members, and between a key and its value."""

    comma = '","'
    colon = '":"'

    def __init__(self, grammar: LarkGrammar) -> None:
        self.grammar = grammar
        self._any = ""
        self._root: object = None
        self._definitions: dict[str, str] = {}  # of the root

    @abstractmethod
    def string(self, schema: ValueSchema) -> str: ...

    @abstractmethod
    def key(self, key: str) -> str: ...

    @abstractmethod
    def any_key(self) -> str: ...

    @abstractmethod
    def written(self, value: object) -> str:
        """Exactly this value."""

    def scalar(self, kind: str, schema: ValueSchema) -> str:
        """A value of a type that is no string, list or object."""
        bounds = {name: schema.plain[name] for name in BOUNDS if name in schema.plain}
        return self.grammar.json({"type": kind, **bounds})

    def value(self, schema: ValueSchema) -> str:
        reference = schema.reference
        if reference is None:
            return self._value(schema)
        if schema.root is not self._root:
            self._root, self._definitions = schema.root, {}
        if reference not in self._definitions:
            # a definition may name itself
            self.grammar.recursive(lambda name: self._define(reference, name, schema))
        return self._definitions[reference]

    def members(self, schema: ValueSchema, members: Sequence[tuple[str, ValueSchema]]) -> str:
        required = schema.required()
        texts = [
            (f"{self.key(key)} {self.colon} {self.value(value)}", key in required)
            for key, value in members
        ]
        return self.in_order(texts, "{", "}")

    def in_order(self, members: Sequence[tuple[str, bool]], opening: str, closing: str) -> str:
        """The members between brackets, without some of those that are not required."""
        first = later = NOTHING  # what can follow when none, or some, were written
        for text, is_required in reversed(members):
            member = self.grammar.rule(text)
            if is_required:
                first, later = f"{member} {later}", f"{self.comma} {member} {later}"
            else:
                first = self.grammar.one_of(f"{member} {later}", first)
                later = f"({self.comma} {member})? {later}"
            first, later = self.grammar.rule(first), self.grammar.rule(later)
        return f'"{opening}" {first} "{closing}"'

    def _define(self, reference: str, name: str, schema: ValueSchema) -> str:
        self._definitions[reference] = name
        return self._value(schema)

    def _value(self, schema: ValueSchema) -> str:
        plain = schema.plain
        if isinstance(values := plain.get("enum"), list):
            return self.grammar.one_of(*map(self.written, values))
        if "const" in plain:
            return self.written(plain["const"])
        if branches := schema.branches():
            return self.grammar.one_of(*map(self.value, branches))
        if not schema.is_typed:
            return self._any_value()
        types = sorted(schema.types - ({"integer"} if "number" in schema.types else set()))
        return self.grammar.one_of(*(self._typed(kind, schema) for kind in types))

    def _typed(self, kind: str, schema: ValueSchema) -> str:
        if kind == "string":
            return self.string(schema)
        if kind == "array":
            return self._list(schema)
        if kind == "object":
            return self._object(schema)
        return self.scalar(kind, schema)

    def _list(self, schema: ValueSchema) -> str:
        item = self.grammar.rule(self.value(schema.items()))
        least = count(schema.plain.get("minItems")) or 0
        most = count(schema.plain.get("maxItems"))
        if most == 0:
            return '"[" "]"'
        more = f"({self.comma} {item}){{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        items = f"{item} {more}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _object(self, schema: ValueSchema) -> str:
        members = list(schema.members())
        if members:
            return self.members(schema, members)
        if schema.plain.get("additionalProperties", True) is False:
            return '"{" "}"'
        return self._free_object(self.grammar.rule(self.value(schema.member(""))))

    def _free_object(self, value: str) -> str:
        member = f"{self.any_key()} {self.colon} {value}"
        return f'"{{" ({member} ({self.comma} {member})*)? "}}"'

    def _any_value(self) -> str:
        if not self._any:
            self._any = self.grammar.recursive(self._any_body)
        return self._any

    def _any_body(self, name: str) -> str:
        scalars = [self.scalar(kind, UNDECLARED) for kind in sorted(SCALARS - {"string"})]
        items = f'"[" ({name} ({self.comma} {name})*)? "]"'
        return self.grammar.one_of(
            *scalars, self.string(UNDECLARED), items, self._free_object(name)
        )


def count(value: object) -> int | None:
    return value if isinstance(value, int) else None
