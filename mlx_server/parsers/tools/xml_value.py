"""Reads a value that is written as the text of an XML element."""

from __future__ import annotations

import html
import re

from mlx_server.parsers.marker import MarkerSplitter
from mlx_server.parsers.tools.tag_marks import ValuePiece
from mlx_server.parsers.tools.typed_text import TypedText
from mlx_server.parsers.tools.value_schema import ValueSchema

CDATA_START = "<![CDATA["
CDATA_END = "]]>"
ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
BEGUN_ENTITY = re.compile(r"&(?:[a-z]{0,4}|#x?[0-9a-fA-F]{0,7})\Z")


class XmlValueReader:
    """Entities are decoded, sections of CDATA are taken as they are."""

    def __init__(self, end: str, schema: ValueSchema) -> None:
        self._end = end
        self._typed = TypedText(schema.types)
        self._outside = MarkerSplitter(end, CDATA_START)
        self._inside = MarkerSplitter(CDATA_END)
        self._splitter = self._outside
        self._held = ""

    def feed(self, text: str) -> ValuePiece:
        found = ""
        rest: str | None = text
        while rest:
            split = self._splitter.feed(rest)
            rest = split.behind
            found += self._typed.add(self._decoded(split.before, is_all=rest is not None))
            if split.marker == self._end:
                return ValuePiece(found + self._typed.finish(), rest)
            if rest is not None:
                is_outside = self._splitter is self._outside
                self._splitter = self._inside if is_outside else self._outside
        return ValuePiece(found)

    def _decoded(self, text: str, *, is_all: bool) -> str:
        if self._splitter is self._inside:
            return text
        text = self._held + text
        begun = None if is_all else BEGUN_ENTITY.search(text)
        end = begun.start() if begun else len(text)
        self._held = text[end:]
        return ENTITY.sub(lambda entity: html.unescape(entity[0]), text[:end])
