"""The grammar of a whole answer: its reasoning, then what the request asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher

from mlx_server.engine.sequence import ChatPrompt, GenerationRequest, ResponseFormat
from mlx_server.errors import InvalidRequest, UnsupportedParameter
from mlx_server.parsers.lark import LarkGrammar, OpenedGrammar
from mlx_server.parsers.reasoning import HARMONY, REASONING_FORMATS
from mlx_server.parsers.tools import TOOL_FORMATS, ToolFormat
from mlx_server.parsers.tools.call import Tools

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
GAP = r"/[ \r\n\t]*/"
HARMONY_TURN = "<|start|>assistant"
HARMONY_ANSWER = "<|channel|>final<|message|>"
SLASH = re.compile(r"(\\.)|/", re.DOTALL)
# Models in a rut write white space without end.
JSON_SPACE = r"[\x20\x0A\x0D\x09]{0,64}"


def answer_grammar(
    request: GenerationRequest,
    added_tokens: Mapping[str, int],
    *,
    tool_format: str | None,
    reasoning_format: str | None,
    is_reasoning: bool,
) -> str | None:
    """In Lark; None where the answer is free. Raises InvalidRequest for what cannot be enforced."""
    grammar = LarkGrammar(added_tokens)
    answer = _Answer(grammar, request, tool_format, reasoning_format).expression()
    if answer is None:
        return None
    return grammar.text(_behind_reasoning(grammar, answer, reasoning_format, is_reasoning))


class _Answer:
    """What comes behind the reasoning."""

    def __init__(
        self,
        grammar: LarkGrammar,
        request: GenerationRequest,
        tool_format: str | None,
        reasoning_format: str | None,
    ) -> None:
        self._grammar = grammar
        self._format = request.response_format
        self._choice = request.tool_choice
        self._tools: Tools = request.prompt.tools if isinstance(request.prompt, ChatPrompt) else ()
        self._tool_format = None if tool_format is None else TOOL_FORMATS[tool_format]
        self._is_harmony = HARMONY in (tool_format, reasoning_format)

    def expression(self) -> str | None:
        if self._choice.mode != "auto":
            return self._calls()
        if self._format is not None:
            content = self._content(self._format)
            return self._grammar.one_of(content, self._calls()) if self._tools else content
        if self._tools and (not self._choice.is_parallel or any(map(is_strict, self._tools))):
            return self._free_with_calls()
        return None

    def _calls(self) -> str:
        tools = checked_tools(
            [
                tool
                for tool in self._tools
                if self._choice.mode != "named" or tool["function"]["name"] == self._choice.name
            ]
        )
        rule = self._calls_rule(self._tool_format)
        return self._grammar.rule(rule(self._grammar, tools, self._choice.is_parallel))

    def _calls_rule(self, tool_format: ToolFormat | None) -> Any:
        if tool_format is None or tool_format.calls_rule is None:
            raise UnsupportedParameter(
                "This model's tool calls cannot be enforced. Leave `tool_choice` at its default.",
                param="tool_choice",
            )
        return tool_format.calls_rule

    def _content(self, wanted: ResponseFormat) -> str:
        refuse_unenforceable(wanted)
        content = self._grammar.rule(format_expression(self._grammar, wanted))
        if self._is_harmony:
            return self._grammar.rule(f"{self._grammar.literal(HARMONY_ANSWER)} {content}")
        return content

    def _free_with_calls(self) -> str:
        """Any text; behind what begins a call, one of these tools' calls."""
        form = self._tool_format
        rule = self._calls_rule(form)
        assert form is not None
        opened = OpenedGrammar(self._grammar, form.tool_call_start)
        call = rule(opened, checked_tools(self._tools), False)
        if not opened.has_opened:
            raise UnsupportedParameter(
                "This model's tool calls cannot be limited: leave `parallel_tool_calls` and "
                "`strict` out.",
                param="parallel_tool_calls",
            )
        up_to = self._grammar.text_up_to(form.tool_call_start)
        one = self._grammar.rule(f"{up_to} {call}")
        rest = self._grammar.text_without(form.tool_call_start)
        return f"{one}* {rest}" if self._choice.is_parallel else f"({one} | {rest})"


def is_strict(tool: Mapping[str, Any]) -> bool:
    return tool["function"].get("strict") is True


def checked_tools(tools: Tools) -> Tools:
    """Tools whose schemas can be enforced; any object is allowed where they need not be.

    Raises InvalidRequest for a strict one that cannot.
    """
    return [_checked_tool(tool) for tool in tools]


def _checked_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool["function"]
    schema = function.get("parameters") or {}
    if why_not(LarkGrammar({}).json({**schema, "type": "object"})) is None:
        return tool
    if is_strict(tool):
        raise InvalidRequest(
            "The parameters of a strict tool are no JSON schema that can be enforced.",
            param="tools",
        )
    return {**tool, "function": {**function, "parameters": ANY_OBJECT}}


def why_not(expression: str) -> str | None:
    """What is wrong with a grammar, in words that may be those of the client."""
    return LLMatcher.validate_grammar(f"start: {expression}\n") or None


def refuse_unenforceable(wanted: ResponseFormat) -> None:
    """Raises InvalidRequest for a format of which no grammar can be made."""
    try:
        is_refused = why_not(format_expression(LarkGrammar({}), wanted)) is not None
    except RecursionError:
        is_refused = True
    if is_refused:
        raise InvalidRequest(
            f"`{wanted.param}` is no {KINDS[wanted.kind]} that can be enforced.", param=wanted.param
        )


KINDS = {
    "json_schema": "JSON schema",
    "regex": "regular expression",
    "lark": "grammar",
    "choice": "list of texts",
}


def format_expression(grammar: LarkGrammar, wanted: ResponseFormat) -> str:
    match wanted.kind:
        case "json_schema":
            return grammar.json(spaced(wanted.value))
        case "regex":
            return f"/{escaped(wanted.value)}/"
        case "choice":
            return grammar.one_of(*(json.dumps(text) for text in wanted.value))
    return f"%lark {{\n{wanted.value}\n}}"


def spaced(schema: Any) -> Any:
    """The schema with white space bounded, unless it says itself how it should be."""
    if not isinstance(schema, Mapping) or "x-guidance" in schema:
        return schema
    return {**schema, "x-guidance": {"whitespace_pattern": JSON_SPACE}}


def escaped(pattern: str) -> str:
    """A regular expression as Lark spells it, between slashes and on one line."""
    return SLASH.sub(lambda m: m[1] or r"\/", pattern).replace("\n", r"\n")


def _behind_reasoning(
    grammar: LarkGrammar, answer: str, reasoning_format: str | None, is_reasoning: bool
) -> str:
    if reasoning_format is None:
        return answer
    form = REASONING_FORMATS[reasoning_format]
    end = HARMONY_TURN if reasoning_format == HARMONY else None
    closed = grammar.rule(grammar.one_of(*map(grammar.text_up_to, form.ends)))
    gap = grammar.literal(end) if end else GAP
    if is_reasoning:
        return f"{closed} {gap} {answer}"
    opening = grammar.one_of(*map(grammar.literal, form.starts))
    return f"({opening} {closed} {gap})? {answer}"
