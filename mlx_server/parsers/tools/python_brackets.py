"""Finds the bracket that closes a call in Python; one in a string closes nothing."""

from __future__ import annotations

import re

CLOSING = {"(": ")", "[": "]", "{": "}"}
# What can follow, by what is open: no string, or a string by its quotes.
TOKENS = {
    "": re.compile(r"\"{1,3}|'{1,3}|[][(){}]"),
    '"': re.compile(r'\\.?|"', re.DOTALL),
    "'": re.compile(r"\\.?|'", re.DOTALL),
    '"""': re.compile(r'\\.?|"{1,3}', re.DOTALL),
    "'''": re.compile(r"\\.?|'{1,3}", re.DOTALL),
}
# At the end of the text these may be half of a longer token.
OPEN_ENDED = frozenset({'"', '""', "'", "''", "\\"})


class BracketFinder:
    """Call it with a text that only grows, from behind the bracket that is to be closed."""

    def __init__(self) -> None:
        self.is_broken = False  # what was found closes another kind of bracket
        self._open = [")"]
        self._string = ""
        self._seen = 0

    def __call__(self, text: str, start: int) -> int:
        """Where the bracket stands, -1 while there is none."""
        at = start + self._seen
        while token := TOKENS[self._string].search(text, at):
            if token.end() == len(text) and token[0] in OPEN_ENDED and token[0] != self._string:
                self._seen = token.start() - start
                return -1
            at = token.end()
            if self._pass(token[0]):
                return token.start()
        self._seen = len(text) - start
        return -1

    def _pass(self, token: str) -> bool:
        """Whether the token ends the search."""
        if self._string:
            if token == self._string:
                self._string = ""
        elif token in CLOSING:
            self._open.append(CLOSING[token])
        elif token[0] in "\"'":
            self._string = token if len(token) != 2 else ""
        else:
            self.is_broken = token != self._open.pop()
            return self.is_broken or not self._open
        return False
