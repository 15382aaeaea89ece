"""Finds the fence that closes a block of Python: one in a string or a comment closes nothing."""

from __future__ import annotations

import re

FENCE = "```"

# What can follow, by what is open: nothing, a string by its quotes, a comment. A string in single
# quotes ends with its line at the latest, so that an apostrophe does not hide all that follows.
TOKENS = {
    "": re.compile(r"\"{1,3}|'{1,3}|`{1,3}|#"),
    '"': re.compile(r'\\.?|"|\n', re.DOTALL),
    "'": re.compile(r"\\.?|'|\n", re.DOTALL),
    '"""': re.compile(r'\\.?|"{1,3}', re.DOTALL),
    "'''": re.compile(r"\\.?|'{1,3}", re.DOTALL),
    "#": re.compile(r"\n"),
}
# At the end of the text these may be half of a longer token.
OPEN_ENDED = frozenset({'"', '""', "'", "''", "`", "``", "\\"})


class FenceFinder:
    """Call it with a text that only grows: it goes on from where it stopped."""

    def __init__(self) -> None:
        self._at = 0
        self._open = ""

    def __call__(self, text: str) -> int:
        """Where the closing fence begins, -1 while there is none."""
        while token := TOKENS[self._open].search(text, self._at):
            if token.end() == len(text) and token[0] in OPEN_ENDED and token[0] != self._open:
                self._at = token.start()
                return -1
            if token[0] == FENCE:
                return token.start()
            self._at = token.end()
            self._pass(token[0])
        self._at = len(text)
        return -1

    def _pass(self, token: str) -> None:
        if not self._open:
            opens = len(token) in (1, 3) and token != "`"
            self._open = token if opens else ""
        elif token in (self._open, "\n"):
            self._open = ""
