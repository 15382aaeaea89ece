"""Checks an answer against OpenAI's published schema of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parent / "openapi"


def check(name: str, value: Any) -> None:
    """Raise ValidationError when `value` is not what the schema of that name describes."""
    schemas: dict[str, Any] = {}
    for name_of_file in ("answers.json", "responses.json"):
        document = json.loads((FOLDER / name_of_file).read_text())
        schemas |= document["components"]["schemas"]
    schema = _with_nulls({"components": {"schemas": schemas}})
    schema["$ref"] = f"#/components/schemas/{name}"
    Draft202012Validator(schema).validate(value)


def _with_nulls(schema: Any) -> Any:
    """The document says `nullable` as OpenAPI 3.0 does, which JSON Schema would not understand."""
    if isinstance(schema, list):
        return [_with_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _with_nulls(value) for key, value in schema.items() if key != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") is True else plain
