"""A tool's JSON schema as the head of a Python function with a docstring.

What a signature cannot say of a parameter stands behind its description, as the rest of its schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from textwrap import indent
from typing import Any

from mlx_server.parsers.tools.call import to_json
from mlx_server.parsers.tools.python_literal import literal
from mlx_server.parsers.tools.python_names import PythonFunction, properties

TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "dict",
    "array": "list",
    "null": "None",
}
ALTERNATIVES = ("anyOf", "oneOf")
IN_SIGNATURE = frozenset({"type", "enum", "const", "default", "title", "description"})
IN_FUNCTION = frozenset(
    {"type", "properties", "required", "additionalProperties", "$schema", "title"}
)


def signature(python_name: str, function: PythonFunction, declared: Mapping[str, Any]) -> str:
    """`declared` is what the client said of the function."""
    head = f"def {python_name}({', '.join(parameters(function, declared))}):"
    docstring = "\n\n".join(sections(function, declared))
    end = "\n" if "\n" in docstring else ""
    return f"{head}\n" + indent(f'"""{docstring}{end}"""' if docstring else "...", "    ")


def parameters(function: PythonFunction, declared: Mapping[str, Any]) -> Iterator[str]:
    schemas = properties(declared)
    has_default = [not is_required(declared, real) for real in function.parameters.values()]
    if has_default != sorted(has_default):
        yield "*"  # Python allows a default before a parameter without one among keywords alone
    for (python, real), optional in zip(function.parameters.items(), has_default, strict=True):
        annotated = f"{python}: {type_name(schemas[real])}"
        yield f"{annotated} = {default(schemas[real])}" if optional else annotated


def is_required(declared: Mapping[str, Any], name: str) -> bool:
    required = declared["parameters"].get("required")
    return isinstance(required, list) and name in required


def default(schema: Any) -> str:
    has_default = isinstance(schema, Mapping) and schema.get("default") is not None
    return literal(schema["default"]) if has_default else "..."


def type_name(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "Any"
    if "const" in schema:
        return f"Literal[{literal(schema['const'])}]"
    if isinstance(values := schema.get("enum"), list):
        return f"Literal[{', '.join(map(literal, values))}]"
    for key in ALTERNATIVES:
        if isinstance(schemas := schema.get(key), list):
            return " | ".join(dict.fromkeys(map(type_name, schemas))) or "Any"
    return plain_type(schema.get("type"), schema.get("items"))


def plain_type(kind: Any, items: Any) -> str:
    kinds = [one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)]
    # once, however often it is listed: schemas nest
    array = f"list[{type_name(items)}]" if items and "array" in kinds else TYPES["array"]
    names = (array if one == "array" else TYPES.get(one, "Any") for one in kinds)
    return " | ".join(dict.fromkeys(names)) or "Any"


def sections(function: PythonFunction, declared: Mapping[str, Any]) -> Iterator[str]:
    if description := declared.get("description"):
        yield description
    schemas = properties(declared)
    lines = [
        f"{python}: {about}"
        for python, real in function.parameters.items()
        if (about := description_of(schemas[real]))
    ]
    if lines:
        yield "Args:\n" + indent("\n".join(lines), "    ")
    schema = declared.get("parameters")
    if isinstance(schema, Mapping) and (rest := without(schema, IN_FUNCTION)):
        yield f"JSON schema: {to_json(rest)}"


def description_of(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return ""
    rest = untold(schema)
    told = [str(schema.get("description") or ""), f"(JSON schema: {to_json(rest)})" if rest else ""]
    return " ".join(filter(None, told))


def untold(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What neither the type nor the description of a parameter says."""
    rest = without(schema, IN_SIGNATURE)
    return {key: value for key, value in rest.items() if not is_in_type(key, value)}


def is_in_type(key: str, value: Any) -> bool:
    if key == "items":
        return is_only_type(value)
    return key in ALTERNATIVES and isinstance(value, list) and all(map(is_only_type, value))


def is_only_type(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "description" not in schema and not untold(schema)


def without(schema: Mapping[str, Any], keys: Set[str]) -> Mapping[str, Any]:
    return {key: value for key, value in schema.items() if key not in keys}
