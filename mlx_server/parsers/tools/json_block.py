"""Reads a block of JSON calls as it comes: an object, several in a row, or a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from mlx_server.parsers.json_scanner import WHITE_SPACE, end_of_run
from mlx_server.parsers.tools.call import BlockNews, CallEvent, NotACall, Tools
from mlx_server.parsers.tools.json_call import KNOWN_AS, JsonCall


class _State(Enum):
    START = auto()  # an object or a list
    FIRST_ITEM = auto()  # behind `[`
    ITEM = auto()  # behind a comma
    OBJECT = auto()  # inside a call
    ITEM_OBJECT = auto()  # inside a call of the list
    NEXT_OBJECT = auto()  # behind a call
    SEPARATED = auto()  # behind a separator
    NEXT_ITEM = auto()  # behind a call of the list
    END = auto()  # behind `]`
    TAG = auto()


@dataclass(frozen=True, slots=True)
class JsonForm:
    """A block without an `end` is over with its list, or with an object that none follows.

    `separators` may stand between objects. `only_declared`: what calls other tools is no call.
    """

    start: str
    end: str
    known_as: Mapping[str, str] = field(default_factory=lambda: KNOWN_AS)
    separators: str = ""
    only_declared: bool = False


class JsonBlockReader:
    """A call is complete when the end marker, another call or the end of the text follows it.

    A start marker in that place counts too: some models forget to close a block. Without an end
    marker an object is complete in itself, and a list with its last bracket.
    """

    def __init__(self, form: JsonForm, tools: Tools = ()) -> None:
        self._form = form
        names = frozenset(tool["function"]["name"] for tool in tools)
        self._names = names if form.only_declared else None
        self._state = _State.START
        self._call: JsonCall | None = None
        self._tag = ""
        self._raw = [form.start]  # since the last complete call
        self._num_raw_of_call = 0  # the pieces that end with `_call`
        self._events: list[CallEvent] = []
        self._rest: str | None = None

    def feed(self, text: str) -> BlockNews:
        at = 0
        while at < len(text) and self._rest is None:
            if self._state is _State.TAG:
                at = self._read_tag(text, at)
            elif self._state in (_State.OBJECT, _State.ITEM_OBJECT):
                at = self._read_call(text, at)
            else:
                at = self._between(text, at)
        events, self._events = self._events, []
        return BlockNews(events, self._rest)

    def finish(self) -> Sequence[CallEvent]:
        if self._call is not None and self._call.is_complete:
            return self._call.complete()
        raw = "".join(self._raw) + self._tag
        return [NotACall(raw)] if raw else []

    def _between(self, text: str, start: int) -> int:
        at = end_of_run(WHITE_SPACE, text, start)
        self._raw.append(text[start:at])
        if at == len(text):
            return at
        match self._state, text[at]:
            case _State.START | _State.NEXT_OBJECT | _State.SEPARATED, "{":
                self._begin_call(_State.OBJECT)
            case _State.FIRST_ITEM | _State.ITEM, "{":
                self._begin_call(_State.ITEM_OBJECT)
            case _State.START, "[":
                self._state = _State.FIRST_ITEM
            case _State.NEXT_ITEM, ",":
                self._state = _State.ITEM
            case _State.NEXT_ITEM | _State.FIRST_ITEM, "]":
                return self._close_list(text, at)
            case _State.NEXT_OBJECT, char if char in self._form.separators:
                self._state = _State.SEPARATED
            case _State.NEXT_OBJECT | _State.SEPARATED, _ if not self._form.end:
                self._rest = "".join(self._raw) + text[at:]
                return at
            case _State.NEXT_OBJECT | _State.END, char if self._may_be_marker(char):
                self._state = _State.TAG
                return at
            case _:
                self._break(text[at:])
                return at
        self._raw.append(text[at])
        return at + 1

    def _close_list(self, text: str, at: int) -> int:
        self._state = _State.END
        self._raw.append(text[at])
        if not self._form.end:
            self._end("", text[at + 1 :])
        return at + 1

    def _begin_call(self, state: _State) -> None:
        self._complete_call()
        self._call = JsonCall(self._form.known_as, self._names)
        self._state = state

    def _complete_call(self) -> None:
        if self._call is not None:
            self._events += self._call.complete()
            self._call = None
            del self._raw[: self._num_raw_of_call]

    def _read_call(self, text: str, start: int) -> int:
        assert self._call is not None
        at = self._call.feed(text, start)
        self._events += self._call.take_events()
        self._raw.append(text[start:at])
        if self._call.is_broken:
            self._break(text[at:])
        elif self._call.is_closed:
            self._num_raw_of_call = len(self._raw)
            is_item = self._state is _State.ITEM_OBJECT
            self._state = _State.NEXT_ITEM if is_item else _State.NEXT_OBJECT
            if not is_item and not self._form.end:
                self._complete_call()
        return at

    def _may_be_marker(self, text: str) -> bool:
        return self._form.end.startswith(text) or self._form.start.startswith(text)

    def _read_tag(self, text: str, at: int) -> int:
        tag = self._tag + text[at]
        if tag == self._form.end:
            self._end(tag, text[at + 1 :])
        elif tag == self._form.start:
            self._end("", tag + text[at + 1 :])
        elif self._may_be_marker(tag):
            self._tag = tag
        else:
            self._break(self._tag + text[at:])
        return at + 1

    def _end(self, tag: str, rest: str) -> None:
        if self._call is None:
            self._raw.append(tag)
            self._break(rest)
        else:
            self._complete_call()
            self._rest = rest

    def _break(self, rest: str) -> None:
        self._events.append(NotACall("".join(self._raw)))
        self._rest = rest
