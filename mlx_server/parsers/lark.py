"""Builds the grammar of a text that a model is made to write, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

ANY_TEXT = r"/(.|\n)*/"
# What means something in a regular expression between slashes.
SPECIAL = re.compile(r"[/\\^$.|?*+()\[\]{}#&~-]")


class LarkGrammar:
    """Collects rules; every method returns an expression that stands for what it says.

    `added_tokens` are the ids of texts that the tokenizer takes as one token. A grammar must name
    them by id: spelled in letters they are other tokens, which no model was trained to write.
    """

    def __init__(self, added_tokens: Mapping[str, int]) -> None:
        self._added = added_tokens
        self._any_added = _any_of(added_tokens)
        self._rules: list[str] = []

    def literal(self, text: str) -> str:
        """Exactly this text."""
        parts = self._any_added.split(text) if self._any_added else [text]
        return " ".join(self._piece(part) for part in parts if part) or '""'

    def json(self, schema: Mapping[str, Any] | bool) -> str:
        """JSON text of a value that the schema allows."""
        return f"%json {json.dumps(schema)}"

    def text_up_to(self, marker: str, pattern: str = ANY_TEXT) -> str:
        """Text of which all matches the pattern, and the marker that ends it."""
        before = self._any_added.split(marker, maxsplit=1)[0] if self._any_added else marker
        if before == marker:
            return self.rule(pattern, f"[suffix={json.dumps(marker)}]")
        # a token of its own ends the text wherever it comes, so what stands before it is part of it
        text = self._add("T", f": ({pattern}) {json.dumps(before)}")
        return f"{text} {self.literal(marker[len(before) :])}"

    def text_without(self, marker: str) -> str:
        """Text that does not hold the marker."""
        if self._any_added and self._any_added.match(marker):
            return self.rule(ANY_TEXT)
        with_marker = rf"/(.|\n)*{SPECIAL.sub(lambda m: chr(92) + m[0], marker)}(.|\n)*/"
        return self._add("T", f": {ANY_TEXT} & ~{with_marker}")

    def rule(self, body: str, attributes: str = "") -> str:
        """A name for the expression, for use in others."""
        return self._add("r", f"{attributes}: {body}")

    def recursive(self, body: Callable[[str], str]) -> str:
        """A name for an expression that is made with it."""
        name = self._add("r", "")
        place = int(name[1:])
        self._rules[place] = f"{name}: {body(name)}"
        return name

    def one_of(self, *expressions: str) -> str:
        return f"({' | '.join(expressions)})"

    def text(self, start: str) -> str:
        """The whole grammar, of which `start` is the expression to begin with."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"

    def _add(self, kind: str, definition: str) -> str:
        name = f"{kind}{len(self._rules)}"
        self._rules.append(name + definition)
        return name

    def _piece(self, text: str) -> str:
        return f"<[{self._added[text]}]>" if text in self._added else json.dumps(text)


class OpenedGrammar(LarkGrammar):
    """Adds to another grammar; what begins with `marker` stands for its text behind that."""

    def __init__(self, grammar: LarkGrammar, marker: str) -> None:
        super().__init__(grammar._added)
        self._rules = grammar._rules
        self._marker = marker
        self.has_opened = False

    def literal(self, text: str) -> str:
        self.has_opened |= text.startswith(self._marker)
        return super().literal(text.removeprefix(self._marker))


def _any_of(texts: Mapping[str, int]) -> re.Pattern[str] | None:
    if not texts:
        return None
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first))})")
