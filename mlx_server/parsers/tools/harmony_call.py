"""Calls as harmony writes them: messages to functions, whose bodies are JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlx_server.parsers.json_scanner import JsonScanner
from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import (
    CallArguments,
    CallEnd,
    CallEvent,
    CallHead,
    MalformedCall,
    NotACall,
    ParsedCall,
    Tools,
    parameters_of,
)
from mlx_server.parsers.tools.whole_block import WholeBlockReader

NAMESPACE = "functions."
tool_call_start = f"<|channel|>commentary to={NAMESPACE}"
tool_call_end = "<|call|>"
CALL = re.compile(r"\s*([^\s<]+)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>(.*)", re.DOTALL)


def parse_tool_call(text: str, _tools: Tools) -> list[ParsedCall]:
    """The call in the text between the marks. Raises MalformedCall if it is none."""
    if not (call := CALL.fullmatch(text)):
        raise MalformedCall
    body = CallBody(call[1])
    arguments = ""
    for event in (*body.feed(call[2]), *body.finish()):
        if isinstance(event, NotACall):
            raise MalformedCall
        if isinstance(event, CallArguments):
            arguments += event.text
    return [ParsedCall(call[1], arguments)]


def make_reader(tools: Tools) -> WholeBlockReader:
    return WholeBlockReader((tool_call_start, tool_call_end), parse_tool_call, tools)


def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    calls = [
        " ".join(
            (
                grammar.literal(f"{tool_call_start}{name} <|constrain|>json<|message|>"),
                grammar.json(schema),
                grammar.literal(tool_call_end),
            )
        )
        for name, schema in parameters_of(tools)
    ]
    call = grammar.rule(grammar.one_of(*calls))
    if not is_parallel:
        return call
    return f"{call} ({grammar.literal('<|start|>assistant')} {call})*"


def function_of(recipient: str, tools: Tools) -> str | None:
    """The name of the function that a message is for, None if it is for no function."""
    if recipient.startswith(NAMESPACE):
        return recipient.removeprefix(NAMESPACE) or None
    names = (tool["function"]["name"] for tool in tools)
    return recipient if recipient in names else None


class CallBody:
    """The events of one call, from the pieces of its message's body.

    The last brace of the arguments waits until the message is over: only then they are complete.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._scanner = JsonScanner()
        self._raw = ""
        self._last = ""
        self._is_call = True

    def feed(self, text: str) -> Sequence[CallEvent]:
        if not self._is_call:
            return [NotACall(text)]
        events: list[CallEvent] = []
        if not self._raw:
            text = text.lstrip()
            if not text:
                return events
            if text[0] != "{":
                return self._break(text)
            events.append(CallHead(self._name))
        self._raw += text
        scanned = self._scanner.feed(text)
        new = scanned.text
        if new and self._scanner.is_complete:
            new, self._last = new[:-1], new[-1]
        if new:
            events.append(CallArguments(new))
        if self._scanner.is_broken or text[scanned.end :].strip():
            return [*events, *self._break("")]
        return events

    def finish(self) -> Sequence[CallEvent]:
        if not self._is_call:
            return ()
        if not self._raw:
            return (CallHead(self._name), CallArguments("{}"), CallEnd())
        if not self._scanner.is_complete:
            return self._break("")
        return (CallArguments(self._last), CallEnd())

    def _break(self, text: str) -> list[CallEvent]:
        self._is_call = False
        return [NotACall(self._raw + text)]
