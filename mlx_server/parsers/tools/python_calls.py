"""The formats whose calls are a list of Python: `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import BlockReader, MalformedCall, ParsedCall, Tools, read_block
from mlx_server.parsers.tools.python_brackets import BracketFinder
from mlx_server.parsers.tools.python_call import call_with
from mlx_server.parsers.tools.python_names import PythonFunction, python_functions
from mlx_server.parsers.tools.python_rule import python_calls
from mlx_server.parsers.tools.stepped_block import SteppedBlock
from mlx_server.parsers.tools.tag_marks import Head
from mlx_server.parsers.tools.tool_format import MakeReader, ToolFormat

NAME = Head("", "(", re.compile(r"(?P<name>[\w.-]+)"), "{name}(", re.compile(r"[^\w.-]"))


class PythonListReader(SteppedBlock):
    """A call is complete with its last bracket; the end marker may be missing."""

    def __init__(
        self, start_marker: str, end_marker: str, tools: Tools, *, only_declared: bool = False
    ) -> None:
        super().__init__(start_marker, end_marker)
        self._end_marker = end_marker
        self._functions = functions_by_any_name(tools)
        self._only_declared = only_declared
        self._function = PythonFunction("")
        self._finder = BracketFinder()
        self.step = self._read_start

    def _read_start(self) -> bool:
        mark = self.mark("[")
        if not mark:
            return self.leave() if mark == "" else False
        self.step = self._read_name
        return True

    def _read_name(self) -> bool:
        match = self.head(NAME)
        if match is None:
            return False
        name = match["name"]
        if self._only_declared and name not in self._functions:
            return self.leave()
        self._function = self._functions.get(name) or PythonFunction(name)
        self.begin_call(self._function.name)
        self._finder = BracketFinder()
        self.step = self._read_arguments
        return True

    def _read_arguments(self) -> bool:
        end = self._finder(self.text, self.at)
        if end < 0:
            return False
        if self._finder.is_broken:
            return self.leave()
        source = self.text[self.at : end]
        self.take(end + 1)
        try:
            call = call_with(source, self._function)
        except MalformedCall:
            return self.leave()
        self.add_arguments(call.arguments)
        self.complete_call()
        self.step = self._read_next
        return True

    def _read_next(self) -> bool:
        mark = self.mark(",", "]")
        if not mark:
            return self.leave() if mark == "" else False
        if mark == ",":
            self.step = self._read_name
        else:
            self.complete_list()
            self.step = self._read_end
        return True

    def _read_end(self) -> bool:
        if not self._end_marker:
            return self.end()
        mark = self.mark(self._end_marker)
        if mark is None:
            return False
        return self.end()


def functions_by_any_name(tools: Tools) -> Mapping[str, PythonFunction]:
    """By their Python names, and by their own where these are no other's."""
    functions = python_functions(tools)
    return {**{function.name: function for function in functions.values()}, **functions}


def python_format(
    start_marker: str, end_marker: str, other_starts: tuple[str, ...] = ()
) -> ToolFormat:
    def reader_behind(start: str, end: str, *, only_declared: bool = False) -> MakeReader:
        return lambda tools: PythonListReader(start, end, tools, only_declared=only_declared)

    make_reader = reader_behind(start_marker, end_marker)

    def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
        reader: BlockReader = make_reader(tools)
        return read_block(reader, text + end_marker)

    def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
        """With the markers or without them: some models were taught the list alone."""
        calls = grammar.rule(f'"[" {python_calls(grammar, tools, ", ", is_parallel)} "]"')
        marked = f"{grammar.literal(start_marker)} {calls} {grammar.literal(end_marker)}"
        return grammar.one_of(marked, calls)

    return ToolFormat(
        start_marker,
        end_marker,
        parse_tool_call,
        make_reader,
        calls_rule,
        {start: reader_behind(start, "") for start in other_starts},
        {"[": reader_behind("", "", only_declared=True)},
    )


PYTHON_FORMATS: Mapping[str, ToolFormat] = {
    "pythonic": python_format("<|tool_call_start|>", "<|tool_call_end|>", ("<|python_tag|>",)),
    "llama4_pythonic": python_format("<|python_start|>", "<|python_end|>"),
}
