"""Calls as Gemma 4 and FunctionGemma write them: `call:name{key:value,...}` between two tags."""

from __future__ import annotations

import re

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import BlockReader, ParsedCall, Tools, read_block
from mlx_server.parsers.tools.gemma_rule import GemmaRule
from mlx_server.parsers.tools.gemma_scanner import GemmaScanner
from mlx_server.parsers.tools.stepped_block import SteppedBlock
from mlx_server.parsers.tools.tag_marks import WORD, Head
from mlx_server.parsers.tools.tool_format import ToolFormat
from mlx_server.parsers.tools.value_schema import UNDECLARED, arguments_of

CALL = "call:"
HEAD = Head(
    CALL,
    "{",
    re.compile(rf"(?:(?:call)?:[ \t]*)?(?P<name>{WORD})[ \t]*"),
    f"{CALL}{{name}}",
    re.compile(r"[{}<>\n]"),
)


class GemmaBlockReader(SteppedBlock):
    """A call is complete with its last brace; the first of a block may lack the word `call`."""

    def __init__(self, start_marker: str, end_marker: str, quote: str, tools: Tools) -> None:
        super().__init__(start_marker, end_marker)
        self._end_marker = end_marker
        self._quote = quote
        self._schemas = arguments_of(tools)
        self._scanner = GemmaScanner(quote, UNDECLARED)
        self.step = self._read_name

    def _next_call(self) -> bool:
        mark = self.mark(HEAD.start, self._end_marker)
        if mark is None:
            return False
        if not mark:
            return self.leave()
        if mark == self._end_marker:
            return self.end()
        self.step = self._read_name
        return True

    def _read_name(self) -> bool:
        match = self.head(HEAD)
        if match is None:
            return False
        name = match["name"]
        self.begin_call(name)
        self._scanner = GemmaScanner(self._quote, self._schemas.get(name, UNDECLARED))
        self.step = self._read_arguments
        return True

    def _read_arguments(self) -> bool:
        scanned = self._scanner.feed(self.text, self.at)
        self.add_arguments(scanned.text)
        self.take(scanned.end)
        if self._scanner.is_broken:
            return self.leave()
        if not self._scanner.is_complete:
            return False
        self.complete_call()
        self.step = self._next_call
        return True


def gemma_format(start_marker: str, end_marker: str, quote: str) -> ToolFormat:
    def make_reader(tools: Tools) -> BlockReader:
        return GemmaBlockReader(start_marker, end_marker, quote, tools)

    def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
        return read_block(make_reader(tools), text + end_marker)

    def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
        rule = GemmaRule(grammar, quote)
        calls = [
            f"{grammar.literal(HEAD.written.format(name=name))} {rule.arguments(schema)}"
            for name, schema in arguments_of(tools).items()
        ]
        block = grammar.rule(
            f"{grammar.literal(start_marker)} {grammar.one_of(*calls)} "
            f"{grammar.literal(end_marker)}"
        )
        return f'{block} ("\\n"? {block})*' if is_parallel else block

    return ToolFormat(start_marker, end_marker, parse_tool_call, make_reader, calls_rule)
