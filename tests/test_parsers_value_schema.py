from __future__ import annotations

from typing import Any

import pytest

from mlx_server.parsers.tools.value_schema import ANY_TYPE, ValueSchema

TEXT = {"type": "string"}


def types(schema: Any, **definitions: Any) -> set[str]:
    return set(ValueSchema(schema, {"$defs": definitions}).types)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, {"string"}),
        ({"type": ["number", "null"]}, {"number", "integer", "null"}),
        ({"enum": ["a", 1, None, True, 1.5]}, ANY_TYPE - {"array", "object"}),
        ({"const": []}, {"array"}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [TEXT, {}]}, ANY_TYPE),
        ({"allOf": [{"type": ["string", "null"]}, TEXT]}, {"string"}),
        ({"type": "integer", "enum": ["a"]}, ANY_TYPE),
        ({"type": "varchar"}, ANY_TYPE),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
        ({}, ANY_TYPE),
        (True, ANY_TYPE),
        ({"$ref": "#/$defs/a~1b"}, {"string"}),
        ({"$ref": "#/$defs/none"}, ANY_TYPE),
        ({"$ref": 7}, ANY_TYPE),
    ],
)
def test_types_are_those_that_every_keyword_allows(schema: Any, expected: set[str]) -> None:
    assert types(schema, **{"a/b": TEXT}) == expected


def test_definitions_may_name_one_another_as_often_as_they_like() -> None:
    names = [f"d{n}" for n in range(30)]
    everyone = [{"$ref": f"#/$defs/{name}"} for name in names]
    definitions = {name: {"anyOf": [*everyone, TEXT]} for name in names}
    assert types(everyone[0], **definitions) == {"string"}
    assert types({"$ref": "#/$defs/me"}, me={"$ref": "#/$defs/me"}) == ANY_TYPE


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        (TEXT, True),
        ({}, True),
        ({"type": ["string", "null"], "title": "t", "default": None}, True),
        ({"anyOf": [TEXT, {"type": "integer"}]}, True),
        ({"anyOf": [TEXT, {"type": "array"}]}, False),
        ({"anyOf": [TEXT, {"type": "integer", "minimum": 1}]}, False),
        ({"type": "integer"}, False),
        ({"type": ["string", "object"]}, False),
        ({"type": "string", "minLength": 1}, False),
    ],
)
def test_any_text_will_do_where_nothing_bounds_it(schema: Any, takes: bool) -> None:
    assert ValueSchema(schema, {}).takes_any_text is takes
