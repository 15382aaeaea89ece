"""The values of MiniMax M3, whose objects and lists are elements in elements."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from mlx_server.parsers.tools.call import to_json
from mlx_server.parsers.tools.tag_marks import TagValueReader, ValuePiece, ValueReader
from mlx_server.parsers.tools.typed_text import json_of
from mlx_server.parsers.tools.value_schema import STRING, ValueSchema

NAMESPACE = "]<]minimax[>["
NAME = r"[A-Za-z_$][\w:.$-]*"
TAG = re.compile(rf"{re.escape(NAMESPACE)}<(?P<slash>/?)(?P<name>{NAME})>")
ITEM = "item"
MAX_DEPTH = 64


class NoElements(ValueError):
    """The text is no sequence of elements."""


def m3_value(end: str, schema: ValueSchema) -> ValueReader:
    return TagValueReader(end, STRING) if schema.types == STRING else ElementReader(end, schema)


class ElementReader:
    """Reads an element up to its own end, which may be that of an inner one of the same name."""

    def __init__(self, end: str, schema: ValueSchema) -> None:
        self._end = end
        self._start = end.replace("</", "<")
        self._schema = schema
        self._text = ""
        self._seen = 0

    def feed(self, text: str) -> ValuePiece:
        self._text += text
        while (at := self._text.find(self._end, self._seen)) >= 0:
            behind = at + len(self._end)
            value = self._text[:at]
            if value.count(self._start) == value.count(self._end):
                return ValuePiece(self._json(value), self._text[behind:])
            self._seen = behind
        self._seen = max(self._seen, len(self._text) - len(self._end) + 1)
        return ValuePiece("")

    def _json(self, text: str) -> str:
        try:
            return to_json(value_of(element_of(text), self._schema))
        except NoElements:
            return to_json(text)


@dataclass(slots=True)
class Element:
    """`text` is what stands between the tags of its children."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)


def element_of(text: str) -> Element:
    """The element of which `text` is the inside."""
    path = [Element("")]
    at = 0
    for tag in TAG.finditer(text):
        path[-1].text += text[at : tag.start()]
        at = tag.end()
        if not tag["slash"]:
            path.append(Element(tag["name"]))
        elif len(path) > 1 and path[-1].name == tag["name"]:
            path[-2].children.append(path.pop())
        else:
            raise NoElements
        if len(path) > MAX_DEPTH:
            raise NoElements
    path[-1].text += text[at:]
    if len(path) > 1:
        raise NoElements
    return path[0]


def value_of(element: Element, schema: ValueSchema) -> object:
    types = schema.types
    if not element.children:
        return text_value(element.text, types)
    if element.text.strip() or types == STRING:
        raise NoElements
    is_list = "object" not in types or all(child.name == ITEM for child in element.children)
    if "array" in types and is_list:
        return [value_of(child, schema.items()) for child in element.children]
    members: dict[str, list[object]] = {}
    for child in element.children:
        value = value_of(child, schema.member(child.name))
        members.setdefault(child.name, []).append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in members.items()}


def text_value(text: str, types: frozenset[str]) -> object:
    if not text.strip() and "string" not in types:
        return {} if "object" in types else [] if "array" in types else text
    return json.loads(json_of(text, types))
