"""Calls as Mistral's models write them: a list of JSON, or names with arguments behind them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlx_server.parsers.json_scanner import WHITE_SPACE, end_of_run
from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import (
    BlockNews,
    BlockReader,
    CallEvent,
    NotACall,
    ParsedCall,
    Tools,
    parameters_of,
    read_block,
)
from mlx_server.parsers.tools.json_arguments import JsonArgumentsBlock
from mlx_server.parsers.tools.json_block import JsonBlockReader, JsonForm
from mlx_server.parsers.tools.json_formats import USUAL_OBJECT, in_a_row, list_of, one_call
from mlx_server.parsers.tools.tag_marks import Head

tool_call_start = "[TOOL_CALLS]"
tool_call_end = ""
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
WORD_END = re.compile(r"[^\w.-]")
NAME = Head("", "", re.compile(r"(?P<name>[\w.-]+)"), "{name}", WORD_END)
ID = Head("", "", re.compile(r"(?P<id>[\w.-]+)"), "{id}", WORD_END)


def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
    """The calls of a text behind the marker. Raises MalformedCall if any of it is none."""
    return read_block(make_reader(tools), text)


def make_reader(tools: Tools) -> BlockReader:
    return MistralReader(tools)


class MistralReader:
    """Knows by the first character which of the two it will be."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._space = ""
        self._reader: BlockReader | None = None

    def feed(self, text: str) -> BlockNews:
        if self._reader is None:
            text = self._space + text
            start = end_of_run(WHITE_SPACE, text, 0)
            if start == len(text):
                self._space = text
                return BlockNews(())
            self._reader = self._begin(text[start])
        return self._reader.feed(text)

    def finish(self) -> Sequence[CallEvent]:
        if self._reader is None:
            return [NotACall(tool_call_start + self._space)]
        return self._reader.finish()

    def _begin(self, char: str) -> BlockReader:
        if char in "[{":
            return JsonBlockReader(JsonForm(tool_call_start, ""), self._tools)
        return NamedCallsReader()


class NamedCallsReader(JsonArgumentsBlock):
    """Names with arguments; only the first may stand without the mark between the two."""

    def __init__(self) -> None:
        super().__init__(tool_call_start, "", ())
        self._name = ""
        self._id: str | None = None
        self._has_mark = False
        self._is_first = True
        self.step = self._read_name

    def next_call(self) -> bool:
        self._is_first = False
        self.step = self._read_name
        return True

    def _read_name(self) -> bool:
        match = self.head(NAME)
        if match is None:
            return False
        self._name, self._id, self._has_mark = match["name"], None, False
        self.step = self._read_marks
        return True

    def _read_marks(self) -> bool:
        mark = self.mark(CALL_ID, ARGS)
        if mark is None:
            return False
        if mark == CALL_ID:
            self.step = self._read_id
            return True
        if not (mark or self._is_first or self._has_mark):
            return self.leave()
        return self.expect_arguments(self._name, self._id)

    def _read_id(self) -> bool:
        match = self.head(ID)
        if match is None:
            return False
        self._id, self._has_mark = match["id"], True
        self.step = self._read_marks
        return True


def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
    """Either form: which of them a model was taught does not show in its template."""
    calls = list_of(grammar, one_call(grammar, tools, USUAL_OBJECT), is_parallel)
    start = grammar.literal(tool_call_start)
    call_id = f"({grammar.literal(CALL_ID)} /[A-Za-z0-9]{{9}}/)?"
    named = [
        f"{start} {grammar.literal(name)} {call_id} {grammar.literal(ARGS)} {grammar.json(schema)}"
        for name, schema in parameters_of(tools)
    ]
    several = in_a_row(grammar.rule(grammar.one_of(*named)), '""', is_parallel)
    return grammar.one_of(f'{start} " "? {calls}', several)
