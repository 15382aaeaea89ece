"""The grammar of the values in Gemma's calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import to_json
from mlx_server.parsers.tools.text_pattern import text_pattern
from mlx_server.parsers.tools.value_rule import ValueRule
from mlx_server.parsers.tools.value_schema import ValueSchema

BARE_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
ANY_KEY = r"/[A-Za-z_][A-Za-z0-9_.-]*/"


class GemmaRule(ValueRule):
    def __init__(self, grammar: LarkGrammar, quote: str) -> None:
        super().__init__(grammar)
        self._quote = quote

    def arguments(self, schema: ValueSchema) -> str:
        members = list(schema.members())
        return self.members(schema, members) if members else '"{" "}"'

    def string(self, schema: ValueSchema) -> str:
        text = self.grammar.text_up_to(self._quote, text_pattern(schema))
        return f"{self.grammar.literal(self._quote)} {text}"

    def key(self, key: str) -> str:
        return self.grammar.literal(self._key_text(key))

    def any_key(self) -> str:
        return ANY_KEY

    def written(self, value: object) -> str:
        return self.grammar.literal(self._text_of(value))

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
