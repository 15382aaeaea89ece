"""Tools for models whose chat template knows none: the conversation rewritten in plain messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    TextPart,
    ToolCall,
)
from mlx_server.parsers.tools.gemma_prompt import GemmaPrompt
from mlx_server.parsers.tools.json_prompt import JsonPrompt

PARAGRAPH = "\n\n"


def describe_in_prompt(prompt: ChatPrompt, tool_format: str) -> ChatPrompt:
    """The same conversation without tools, tool calls and tool messages, all told as text."""
    if not prompt.tools and not any(m.tool_calls or m.role == "tool" for m in prompt.messages):
        return prompt
    style = GemmaPrompt(prompt.tools) if tool_format == "gemma_code" else JsonPrompt()
    messages = _plain_messages(prompt.messages, style)
    if prompt.tools:
        messages = _with_system_text(messages, style.describe(prompt.tools))
    return replace(prompt, messages=tuple(messages), tools=())


def _plain_messages(
    messages: Sequence[ChatMessage], style: GemmaPrompt | JsonPrompt
) -> list[ChatMessage]:
    plain: list[ChatMessage] = []
    was_result = False
    for message in _results_in_order(messages):
        is_result = message.role == "tool"
        plain_message = _plain_message(message, style)
        # many templates refuse two user turns in a row, so a result shares its neighbour's
        if plain and _both_user(plain[-1], plain_message) and (is_result or was_result):
            plain[-1] = _joined(plain[-1], plain_message)
        else:
            plain.append(plain_message)
        was_result = is_result
    return plain


def _both_user(first: ChatMessage, second: ChatMessage) -> bool:
    return first.role == second.role == "user"


def _joined(first: ChatMessage, second: ChatMessage) -> ChatMessage:
    return replace(first, content=_paragraphs(first.content, second.content))


def _plain_message(message: ChatMessage, style: GemmaPrompt | JsonPrompt) -> ChatMessage:
    if message.role == "tool":
        before, after = style.result_marks
        content = _concatenated((TextPart(before), *_one_text(message.content), TextPart(after)))
        return ChatMessage("user", content)
    if message.tool_calls:
        calls = (TextPart(style.calls(message.tool_calls)),)
        return replace(
            message, content=_paragraphs(_one_text(message.content), calls), tool_calls=()
        )
    return message


def _results_in_order(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """Results in a row stand in the order of their calls: as text they no longer carry an id."""
    calls: tuple[ToolCall, ...] = ()
    results: list[ChatMessage] = []
    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        yield from _sorted_by_call(results, calls)
        results, calls = [], message.tool_calls
        yield message
    yield from _sorted_by_call(results, calls)


def _sorted_by_call(results: list[ChatMessage], calls: Sequence[ToolCall]) -> list[ChatMessage]:
    places = {call.id: place for place, call in enumerate(calls)}
    return sorted(results, key=lambda result: places.get(result.tool_call_id or "", len(places)))


def _with_system_text(messages: list[ChatMessage], text: str) -> list[ChatMessage]:
    description = (TextPart(text),)
    if messages and messages[0].role == "system":
        system, *others = messages
        content = _paragraphs(_one_text(system.content), description)
        return [replace(system, content=content), *others]
    return [ChatMessage("system", description), *messages]


def _one_text(parts: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """Texts that follow one another as one, a line each: some templates read the first alone."""
    return _concatenated(_separated(parts, "\n"))


def _paragraphs(
    first: Sequence[ContentPart], second: Sequence[ContentPart]
) -> tuple[ContentPart, ...]:
    """One after the other; where text meets text they share a part, since templates trim parts."""
    if not first or not second:
        return (*first, *second)
    return (*first[:-1], *_concatenated(_separated((first[-1], second[0]), PARAGRAPH)), *second[1:])


def _separated(parts: Sequence[ContentPart], separator: str) -> Iterator[ContentPart]:
    for place, part in enumerate(parts):
        if place and isinstance(part, TextPart) and isinstance(parts[place - 1], TextPart):
            yield TextPart(separator)
        yield part


def _concatenated(parts: Iterable[ContentPart]) -> tuple[ContentPart, ...]:
    merged: list[ContentPart] = []
    for part in parts:
        if isinstance(part, TextPart) and merged and isinstance(merged[-1], TextPart):
            merged[-1] = TextPart(merged[-1].text + part.text)
        else:
            merged.append(part)
    return tuple(merged)
