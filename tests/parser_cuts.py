"""Reads a text with the output parser in every way it may arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_server.parsers.answer import Answer
from mlx_server.parsers.output import (
    ContentDelta,
    OutputDelta,
    OutputParser,
    ToolCallArguments,
    ToolCallStart,
)


def tool(name: str, *parameters: str) -> Mapping[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@dataclass(frozen=True, slots=True)
class Result:
    """What is left of an answer when ids are taken away; `streamed` has broken calls too."""

    content: str
    calls: tuple[tuple[str, str], ...]
    streamed: tuple[tuple[str, str], ...]
    reasoning: str = ""


def deltas(
    pieces: Iterable[str], tools: Sequence[Mapping[str, Any]], tool_format: str
) -> list[OutputDelta]:
    parser = OutputParser(tool_format, tools)
    found = [delta for piece in pieces for delta in parser.feed(piece)]
    return found + parser.finish()


def read(
    pieces: Iterable[str],
    tools: Sequence[Mapping[str, Any]],
    tool_format: str | None,
    reasoning_format: str | None = None,
    is_reasoning: bool = False,
) -> Result:
    parser = OutputParser(tool_format, tools, reasoning_format, is_reasoning)
    found = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    answer = Answer()
    answer.add(found)
    answer.finish()
    content = "".join(delta.text for delta in found if isinstance(delta, ContentDelta))
    starts = [delta for delta in found if isinstance(delta, ToolCallStart)]
    assert (answer.content or "") == content
    assert parser.num_tool_calls == len(answer.tool_calls)
    assert [start.index for start in starts] == list(range(len(starts)))
    return Result(
        content,
        tuple((call.name, call.arguments) for call in answer.tool_calls),
        tuple((start.name, arguments_of(start.index, found)) for start in starts),
        answer.reasoning or "",
    )


def arguments_of(index: int, found: Iterable[OutputDelta]) -> str:
    pieces = (d for d in found if isinstance(d, ToolCallArguments) and d.index == index)
    return "".join(piece.text for piece in pieces)


def cuts(text: str) -> Iterator[Sequence[str]]:
    """Every way to cut the text in two, and one character a piece."""
    for at in range(1, len(text)):
        yield text[:at], text[at:]
    yield tuple(text)


def read_every_way(
    text: str,
    tools: Sequence[Mapping[str, Any]],
    tool_format: str | None,
    reasoning_format: str | None = None,
    is_reasoning: bool = False,
) -> Result:
    whole = read([text], tools, tool_format, reasoning_format, is_reasoning)
    for pieces in cuts(text):
        assert read(pieces, tools, tool_format, reasoning_format, is_reasoning) == whole, pieces
    return whole
