"""What a tool's JSON schema says of one value in its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from mlx_server.parsers.tools.call import Tools, parameters_of

STRING = frozenset({"string"})
SCALARS = frozenset({"string", "integer", "number", "boolean", "null"})
ANY_TYPE = SCALARS | {"array", "object"}
DEFINITIONS = ("$defs", "definitions")
MAX_REFERENCES = 16
# Keywords that allow every value.
REMARKS = frozenset(
    {"type", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """`root` is the schema of all arguments, which `$ref`s are looked up in."""

    schema: object
    root: Mapping[str, object]

    @property
    def plain(self) -> Mapping[str, object]:
        """The keywords, those of the definition if the schema is nothing but its name."""
        schema = self.schema
        for _ in range(MAX_REFERENCES):
            if not isinstance(schema, Mapping) or "$ref" not in schema:
                break
            schema = self._definition(schema["$ref"])
        return schema if isinstance(schema, Mapping) else {}

    @property
    def reference(self) -> str | None:
        """The name of the definition, if the schema is nothing but that."""
        name = self.schema.get("$ref") if isinstance(self.schema, Mapping) else None
        return name if isinstance(name, str) else None

    @property
    def types(self) -> frozenset[str]:
        """The types that a value may have, all of them where nothing is said."""
        return self._types({})

    @property
    def is_typed(self) -> bool:
        """Whether anything is said of the type."""
        return self.types != ANY_TYPE

    @property
    def takes_any_text(self) -> bool:
        """Whether a text can be read as a valid value whatever it says."""
        if "string" not in self.types:
            return False
        if self.plain.keys() <= REMARKS | {"anyOf"} and "anyOf" in self.plain:
            return all(branch._is_unbounded for branch in self.branches())
        return self._is_unbounded

    @property
    def standalone(self) -> Mapping[str, object]:
        """The schema with the definitions that it may name."""
        definitions = {name: self.root[name] for name in DEFINITIONS if name in self.root}
        own = self.schema if isinstance(self.schema, Mapping) else {}
        return {**definitions, **own}

    @property
    def texts(self) -> Sequence[str]:
        """The strings that are allowed, if there is a list of them."""
        schema = self.plain
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []

    def member(self, name: str) -> ValueSchema:
        schema = self.plain
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return self._within(properties[name])
        return self._within(schema.get("additionalProperties", True))

    def members(self) -> Iterator[tuple[str, ValueSchema]]:
        """The members of the object, in the order in which they are declared."""
        properties = self.plain.get("properties")
        names = list(properties) if isinstance(properties, Mapping) else []
        for name in dict.fromkeys([*names, *self.required()]):
            yield name, self.member(name)

    def branches(self) -> Sequence[ValueSchema]:
        """The schemas of which the value must fit one, if there are such."""
        found = self.plain.get("anyOf", self.plain.get("oneOf"))
        return [self._within(branch) for branch in found] if isinstance(found, list) else []

    def required(self) -> Sequence[str]:
        names = self.plain.get("required")
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []

    def items(self) -> ValueSchema:
        return self._within(self.plain.get("items", True))

    def _within(self, schema: object) -> ValueSchema:
        return ValueSchema(schema, self.root)

    def _definition(self, reference: object) -> object:
        found: object = self.root
        for part in str(reference).removeprefix("#").split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return True
            found = found[name]
        return found

    @property
    def _is_unbounded(self) -> bool:
        schema = self.plain
        return schema.keys() <= REMARKS and ("type" not in schema or self.types <= SCALARS)

    def _types(self, known: dict[str, frozenset[str]]) -> frozenset[str]:
        """`known` has the types of definitions; of one that names itself, none so far."""
        reference = self.reference
        if reference is None:
            return self._types_told(known)
        if reference not in known:
            known[reference] = frozenset()
            known[reference] = self._types_told(known)
        return known[reference]

    def _types_told(self, known: dict[str, frozenset[str]]) -> frozenset[str]:
        schema = self.plain
        told = list(self._told(schema, known))
        if not told and "properties" in schema:
            return frozenset({"object"})
        if not told and "items" in schema:
            return frozenset({"array"})
        return reduce(frozenset.__and__, told, ANY_TYPE) or ANY_TYPE

    def _told(
        self, schema: Mapping[str, object], known: dict[str, frozenset[str]]
    ) -> Iterator[frozenset[str]]:
        if "type" in schema:
            yield types_named(schema["type"])
        if isinstance(values := schema.get("enum"), list):
            yield frozenset(map(type_of, values))
        if "const" in schema:
            yield frozenset({type_of(schema["const"])})
        for keyword in ("anyOf", "oneOf"):
            if isinstance(branches := schema.get(keyword), list):
                found = [self._within(branch)._types(known) for branch in branches]
                yield reduce(frozenset.__or__, found, frozenset())
        if isinstance(branches := schema.get("allOf"), list):
            for branch in branches:
                yield self._within(branch)._types(known)


UNDECLARED = ValueSchema({}, {})
"""The arguments of a tool that nothing is known of."""


def types_named(names: object) -> frozenset[str]:
    told = names if isinstance(names, list) else [names]
    types = frozenset(name for name in told if isinstance(name, str))
    if not types <= ANY_TYPE:
        return ANY_TYPE
    return types | {"integer"} if "number" in types else types


def type_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
        case _:
            return "null"


def arguments_of(tools: Tools) -> Mapping[str, ValueSchema]:
    """The arguments of each tool, by its name."""
    return {name: ValueSchema(schema, schema) for name, schema in parameters_of(tools)}
