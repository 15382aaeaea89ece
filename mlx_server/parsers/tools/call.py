"""The values in which the tool formats speak of calls, whole or as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Tools = Sequence[Mapping[str, Any]]
"""OpenAI tool objects, as the client declared them."""


class MalformedCall(ValueError):
    """The text between the markers is no call."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """`arguments` is the JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallHead:
    """`id` is the one that the model gave the call itself, in formats that have such."""

    name: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """All arguments of the call are out, and they are a JSON object."""


@dataclass(frozen=True, slots=True)
class NotACall:
    """What was read since the last complete call, verbatim; a head that came before it is void."""

    text: str


CallEvent = CallHead | CallArguments | CallEnd | NotACall


@dataclass(frozen=True, slots=True)
class BlockNews:
    """`rest` is the text behind the block once it is over, None while it goes on."""

    events: Sequence[CallEvent]
    rest: str | None = None


class BlockReader(Protocol):
    """Reads one block of calls from behind its start marker, up to its end marker or its failure.

    What it says does not depend on how the text was cut, apart from where argument pieces part.
    """

    def feed(self, text: str) -> BlockNews: ...

    def finish(self) -> Sequence[CallEvent]:
        """The text ends inside the block."""
        ...


def parameters_of(tools: Tools) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The name of each tool and the JSON schema of its arguments, which are an object."""
    for tool in tools:
        function = tool["function"]
        schema = function.get("parameters") or {"properties": {}}
        yield function["name"], {**schema, "type": "object"}


def whole_call(call: ParsedCall) -> Sequence[CallEvent]:
    return (CallHead(call.name), CallArguments(call.arguments), CallEnd())


def to_json(value: object) -> str:
    """JSON text that can be encoded; raises ValueError or TypeError for what JSON cannot say."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # what UTF-8 cannot hold is half a surrogate pair, whose Python escape is also its JSON escape
    return text.encode("utf-8", "backslashreplace").decode()


def read_block(reader: BlockReader, text: str) -> list[ParsedCall]:
    """The calls of a block that ends with the text. Raises MalformedCall if any of it is none."""
    news = reader.feed(text)
    end = reader.finish() if news.rest is None else ()
    calls: list[ParsedCall] = []
    for event in (*news.events, *end):
        match event:
            case CallHead(name):
                calls.append(ParsedCall(name, ""))
            case CallArguments(more):
                calls[-1] = ParsedCall(calls[-1].name, calls[-1].arguments + more)
            case NotACall():
                raise MalformedCall
    if news.rest or not calls:
        raise MalformedCall
    return calls
