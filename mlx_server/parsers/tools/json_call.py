"""Reads one call object of JSON, `{"name": ..., "arguments": {...}}`, as it comes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from enum import Enum, auto

from mlx_server.parsers.json_scanner import WHITE_SPACE, JsonScanner, end_of_run
from mlx_server.parsers.tools.call import (
    CallArguments,
    CallEnd,
    CallEvent,
    CallHead,
    to_json,
)

NAME = "name"
ARGUMENTS = "arguments"
KNOWN_AS: Mapping[str, str] = {"name": NAME, "arguments": ARGUMENTS, "parameters": ARGUMENTS}
REMARKS = frozenset({"id", "type"})
BEGINNINGS = {NAME: '"', ARGUMENTS: '{"n'}  # of a string; of an object, a string, null


class _State(Enum):
    FIRST_KEY = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA = auto()


class JsonCall:
    """Fed from behind the opening brace of the call to its closing one.

    The last brace of the arguments stays here until `complete`: only whoever reads what follows
    knows that the call is one. With `names`, an object that names another tool, or that has members
    unknown to calls, breaks as soon as that shows.
    """

    def __init__(
        self, known_as: Mapping[str, str] = KNOWN_AS, names: Set[str] | None = None
    ) -> None:
        self._known_as = known_as
        self._names = names
        self.is_closed = False
        self.is_broken = False
        self._state = _State.FIRST_KEY
        self._scanner = JsonScanner()
        self._key = ""  # of the value being read; empty for keys without a meaning here
        self._seen: set[str] = set()
        self._value = ""
        self._streams = False
        self._name: str | None = None
        self._arguments: str | None = None
        self._has_head = False
        self._events: list[CallEvent] = []

    @property
    def is_complete(self) -> bool:
        """Nothing that is missing could change the call."""
        return self._name is not None and (self.is_closed or self._arguments is not None)

    def feed(self, text: str, start: int) -> int:
        """Read on from `start`; return where it stopped."""
        at = start
        while at < len(text) and not (self.is_closed or self.is_broken):
            if self._state in (_State.IN_KEY, _State.IN_VALUE):
                at = self._scan(text, at)
            else:
                at = self._between(text, at)
        return at

    def take_events(self) -> Sequence[CallEvent]:
        events, self._events = self._events, []
        return events

    def complete(self) -> Sequence[CallEvent]:
        """The events that are left; only for a call that `is_complete`."""
        assert self._name is not None
        head = [] if self._has_head else [CallHead(self._name)]
        return [*head, CallArguments(self._arguments or "{}"), CallEnd()]

    def _between(self, text: str, start: int) -> int:
        at = end_of_run(WHITE_SPACE, text, start)
        if at == len(text):
            return at
        match self._state, text[at]:
            case _State.FIRST_KEY | _State.KEY, '"':
                self._begin(_State.IN_KEY)
                return at
            case _State.VALUE, char if char in BEGINNINGS.get(self._key, char):
                self._begin(_State.IN_VALUE)
                # arguments that come before the name wait for it
                self._streams = self._key == ARGUMENTS and char == "{" and self._name is not None
                return at
            case _State.COLON, ":":
                self._state = _State.VALUE
            case _State.COMMA, ",":
                self._state = _State.KEY
            case _State.FIRST_KEY | _State.COMMA, "}" if self._name is not None:
                self.is_closed = True
            case _:
                self.is_broken = True
                return at
        return at + 1

    def _begin(self, state: _State) -> None:
        self._state = state
        self._scanner = JsonScanner()
        self._value = ""
        self._streams = False

    def _scan(self, text: str, start: int) -> int:
        scanned = self._scanner.feed(text, start)
        self._value += scanned.text
        self.is_broken = self._scanner.is_broken
        if self._scanner.is_complete:
            self._end_value()
        elif self._streams:
            self._send()
        elif self._state is _State.IN_VALUE and self._key == NAME and not self._may_be_name():
            self.is_broken = True
        return scanned.end

    def _send(self) -> None:
        """Send what there is of the arguments."""
        if not self._has_head:
            assert self._name is not None
            self._events.append(CallHead(self._name))
            self._has_head = True
        if self._value:
            self._events.append(CallArguments(self._value))
            self._value = ""

    def _end_value(self) -> None:
        ended, self._state = self._state, _State.COMMA
        if ended is _State.IN_KEY:
            self._end_key()
        elif self._key == NAME:
            self._name = encodable(json.loads(self._value))
            self.is_broken = not self._name or not self._is_declared(self._name)
        elif self._key == ARGUMENTS:
            self._end_arguments()

    def _end_key(self) -> None:
        self._state = _State.COLON
        key = json.loads(self._value)
        self._key = self._known_as.get(key, "")
        is_odd = self._names is not None and not self._key and key not in REMARKS
        self.is_broken = is_odd or self._key in self._seen
        if self._key:
            self._seen.add(self._key)

    def _is_declared(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _may_be_name(self) -> bool:
        """Whether the string that is being read may become the name of a tool."""
        begun = self._value[1:]
        return self._names is None or any(to_json(n)[1:].startswith(begun) for n in self._names)

    def _end_arguments(self) -> None:
        if self._streams:
            self._value, self._arguments = self._value[:-1], self._value[-1]
            self._send()
        elif self._value == "null":
            self._arguments = "{}"
        elif self._value.startswith("{"):
            self._arguments = self._value
        else:
            self._arguments = arguments_in_string(json.loads(self._value))
            self.is_broken = self._arguments is None


def arguments_in_string(text: str) -> str | None:
    """The object that was written as a string of JSON, None if it is no object."""
    text = text.strip(" \t\r\n")
    if not text:
        return "{}"
    scanner = JsonScanner()
    scanned = scanner.feed(text)
    is_object = text.startswith("{") and scanner.is_complete and scanned.end == len(text)
    return encodable(scanned.text) if is_object else None


def encodable(text: str) -> str | None:
    """The text, unless it holds half a surrogate pair, which no answer can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text
