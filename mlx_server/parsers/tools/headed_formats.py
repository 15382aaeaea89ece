"""The formats whose calls are a head that names the tool, and arguments in JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import BlockReader, ParsedCall, Tools, parameters_of, read_block
from mlx_server.parsers.tools.json_arguments import JsonArgumentsBlock
from mlx_server.parsers.tools.tag_marks import Head
from mlx_server.parsers.tools.tool_format import MakeReader, ToolFormat

NAME = r"(?P<name>[^\s<>{}()\[\]:`\"']+)"
NEXT_TAG = re.compile("<")


@dataclass(frozen=True, slots=True)
class HeadedMarks:
    """Without `block_ends` a block is one call, without `call.start` it begins with its head.

    `written_end` is what a model writes behind the arguments, `between` what it writes between
    calls, `id_pattern` what stands for {id} in the head.
    """

    block_start: str
    block_ends: tuple[str, ...]
    call: Head
    call_ends: tuple[str, ...]
    written_end: str
    between: str = ""
    id_pattern: str = ""
    only_declared: bool = False


class HeadedBlockReader(JsonArgumentsBlock):
    def __init__(self, marks: HeadedMarks, tools: Tools) -> None:
        super().__init__(marks.block_start, (*marks.block_ends, "")[0], marks.call_ends)
        self._marks = marks
        self._names = {tool["function"]["name"] for tool in tools}
        self.step = self.next_call if marks.call.start else self._read_head

    def next_call(self) -> bool:
        if not self._marks.block_ends:
            return self.end()
        mark = self.mark(self._marks.call.start, *self._marks.block_ends)
        if not mark:
            return self.leave() if mark == "" else False
        if mark != self._marks.call.start:
            return self.end()
        self.step = self._read_head
        return True

    def _read_head(self) -> bool:
        match = self.head(self._marks.call)
        if match is None:
            return False
        if self._marks.only_declared and match["name"] not in self._names:
            return self.leave()
        return self.expect_arguments(match["name"], match.groupdict().get("id"))


class HeadedRule:
    def __init__(self, marks: HeadedMarks, grammar: LarkGrammar) -> None:
        self._marks = marks
        self._grammar = grammar

    def calls(self, tools: Tools, is_parallel: bool) -> str:
        calls = [
            f"{self._head(name)} {self._grammar.json(schema)} {self._end}"
            for name, schema in parameters_of(tools)
        ]
        call = self._grammar.rule(self._grammar.one_of(*calls))
        between = self._grammar.literal(self._marks.between)
        several = f"{call} ({between} {call})*" if is_parallel else call
        if not self._marks.block_ends:
            return several
        start, end = map(
            self._grammar.literal, (self._marks.block_start, self._marks.block_ends[0])
        )
        return f"{start} {several} {end}"

    @property
    def _end(self) -> str:
        return self._grammar.literal(self._marks.written_end)

    def _head(self, name: str) -> str:
        start = "" if self._marks.block_ends else self._marks.block_start
        written = start + self._marks.call.written.replace("{name}", name)
        parts = map(self._grammar.literal, written.split("{id}"))
        return f" {self._marks.id_pattern} ".join(parts)


def reader_of(marks: HeadedMarks) -> MakeReader:
    return lambda tools: HeadedBlockReader(marks, tools)


def headed_format(
    marks: HeadedMarks, other_starts: Mapping[str, MakeReader] | None = None
) -> ToolFormat:
    end = (*marks.block_ends, marks.call_ends[-1])[0]

    def make_reader(tools: Tools) -> BlockReader:
        return HeadedBlockReader(marks, tools)

    def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
        return read_block(make_reader(tools), text + end)

    def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
        return HeadedRule(marks, grammar).calls(tools, is_parallel)

    return ToolFormat(
        marks.block_start, end, parse_tool_call, make_reader, calls_rule, other_starts or {}
    )


def deepseek_marks(head: Head, *call_ends: str, between: str = "") -> HeadedMarks:
    return HeadedMarks(
        "<｜tool▁calls▁begin｜>",
        ("<｜tool▁calls▁end｜>",),
        head,
        (*call_ends, "<｜tool▁call▁end｜>"),
        "".join(f"\n{end}" for end in call_ends) + "<｜tool▁call▁end｜>",
        between,
    )


DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"
DEEPSEEK_V3 = deepseek_marks(
    Head(
        DEEPSEEK_CALL,
        "```json",
        re.compile(rf"\s*function<｜tool▁sep｜>\s*{NAME}\s*"),
        f"{DEEPSEEK_CALL}function<｜tool▁sep｜>{{name}}\n```json\n",
        re.compile("[`{]"),
    ),
    "```",
    between="\n",
)
DEEPSEEK_V31 = deepseek_marks(
    Head(
        DEEPSEEK_CALL,
        "<｜tool▁sep｜>",
        re.compile(rf"\s*{NAME}\s*"),
        f"{DEEPSEEK_CALL}{{name}}<｜tool▁sep｜>",
        NEXT_TAG,
    )
)


def kimi_marks(section: str) -> HeadedMarks:
    start, end = f"<|{section}_section_begin|>", f"<|{section}_section_end|>"
    others = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
    return HeadedMarks(
        start,
        (end, *(other for other in others if other != end)),
        Head(
            "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>",
            # the id holds the name; one without a number says nothing more than that
            re.compile(rf"\s*(?:(?=(?P<id>\S+:\d+)\s*$)|)(?:functions\.)?{NAME}(?::\d+)?\s*"),
            "<|tool_call_begin|>functions.{name}:{id}<|tool_call_argument_begin|>",
            NEXT_TAG,
        ),
        ("<|tool_call_end|>",),
        "<|tool_call_end|>",
        id_pattern="/[0-9]{1,4}/",
    )


SOLAR_OPEN = HeadedMarks(
    "<|tool_call:begin|>",
    (),
    Head(
        "",
        "<|tool_call:args|>",
        re.compile(rf"\s*(?P<id>[^\s<>]+)?\s*<\|tool_call:name\|>\s*{NAME}\s*"),
        "{id}<|tool_call:name|>{name}<|tool_call:args|>",
        re.compile(r"<(?!\|tool_call:n)"),
    ),
    ("<|tool_call:end|>",),
    "<|tool_call:end|>",
    id_pattern="/[A-Za-z0-9_-]{1,64}/",
)
# What a model writes that has seen calls only as text.
BRACKETS = HeadedMarks(
    "[Calling tool:",
    (),
    Head("", "(", re.compile(rf"\s*{NAME}"), " {name}(", re.compile(r"[^\w.-]")),
    (")", "]"),
    ")]",
    only_declared=True,
)

HEADED_FORMATS: Mapping[str, ToolFormat] = {
    "deepseek_v3": headed_format(DEEPSEEK_V3),
    "deepseek_v31": headed_format(DEEPSEEK_V31),
    "kimi_k2": headed_format(
        kimi_marks("tool_calls"),
        {kimi_marks("tool_call").block_start: reader_of(kimi_marks("tool_call"))},
    ),
    "solar_open": headed_format(SOLAR_OPEN),
}
