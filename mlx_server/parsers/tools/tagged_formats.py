"""The tool formats that are written in tags."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools.call import BlockReader, ParsedCall, Tools, read_block
from mlx_server.parsers.tools.gemma_calls import gemma_format
from mlx_server.parsers.tools.minimax_m3 import NAME, NAMESPACE, m3_value
from mlx_server.parsers.tools.tag_block import TagBlockReader
from mlx_server.parsers.tools.tag_marks import (
    ANYTHING,
    ATTRIBUTES,
    EQUALS,
    LINE,
    NEXT_TAG,
    Head,
    TagMarks,
)
from mlx_server.parsers.tools.tag_rule import TagRule
from mlx_server.parsers.tools.tool_format import ToolFormat
from mlx_server.parsers.tools.xml_value import CDATA_END, CDATA_START, XmlValueReader


def function_tags() -> TagMarks:
    return TagMarks(
        block_start="<tool_call>",
        block_end="</tool_call>",
        call=Head("<function", ">", EQUALS, "<function={name}>"),
        call_end="</function>",
        key=Head("<parameter", ">", EQUALS, "<parameter={name}>"),
        value_end="</parameter>",
        has_own_line=True,
    )


def argument_tags(prefix: str) -> TagMarks:
    """The tags of GLM, whose calls end with their block."""
    return TagMarks(
        block_start=f"<{prefix}tool_call>",
        block_end=f"</{prefix}tool_call>",
        call=Head("", "", LINE, "{name}"),
        call_end="",
        key=Head(
            f"<{prefix}arg_key>",
            f"</{prefix}arg_key>",
            ANYTHING,
            f"<{prefix}arg_key>{{name}}</{prefix}arg_key>",
            NEXT_TAG,
        ),
        value_start=f"<{prefix}arg_value>",
        value_end=f"</{prefix}arg_value>",
    )


def invoke_tags(block: str, prefix: str = "", attributes: str = "") -> TagMarks:
    return TagMarks(
        block_start=f"<{block}>",
        block_end=f"</{block}>",
        call=Head(f"<{prefix}invoke", ">", ATTRIBUTES, f'<{prefix}invoke name="{{name}}">'),
        call_end=f"</{prefix}invoke>",
        key=Head(
            f"<{prefix}parameter",
            ">",
            ATTRIBUTES,
            f'<{prefix}parameter name="{{name}}"{attributes}>',
        ),
        value_end=f"</{prefix}parameter>",
        shares_block=True,
    )


def element_tags() -> TagMarks:
    """The tags of MiniMax M3: a value's tag is its name."""
    return TagMarks(
        block_start=f"{NAMESPACE}<tool_call>",
        block_end=f"{NAMESPACE}</tool_call>",
        call=Head(f"{NAMESPACE}<invoke", ">", ATTRIBUTES, f'{NAMESPACE}<invoke name="{{name}}">'),
        call_end=f"{NAMESPACE}</invoke>",
        key=Head(f"{NAMESPACE}<", ">", re.compile(f"(?P<name>{NAME})"), f"{NAMESPACE}<{{name}}>"),
        value_end=f"{NAMESPACE}</{{key}}>",
        shares_block=True,
        make_value=m3_value,
    )


def xml_tags() -> TagMarks:
    """The tags of MiniCPM 5, which knows no block around its calls."""
    return TagMarks(
        block_start="",
        block_end="",
        call=Head("<function", ">", ATTRIBUTES, '<function name="{name}">'),
        call_end="</function>",
        key=Head("<param", ">", ATTRIBUTES, '<param name="{name}">'),
        value_end="</param>",
        wrapping=(CDATA_START, CDATA_END),
        make_value=XmlValueReader,
    )


def tag_format(marks: TagMarks, *, may_be_bare: bool = False) -> ToolFormat:
    """`may_be_bare`: some models leave out the block around a call."""

    def make_reader(tools: Tools) -> BlockReader:
        return TagBlockReader(marks, tools)

    def make_bare_reader(tools: Tools) -> BlockReader:
        return TagBlockReader(marks, tools, is_bare=True)

    def parse_tool_call(text: str, tools: Tools) -> list[ParsedCall]:
        return read_block(make_reader(tools), text + (marks.block_end or marks.call_end))

    def calls_rule(grammar: LarkGrammar, tools: Tools, is_parallel: bool) -> str:
        return TagRule(marks, grammar).calls(tools, is_parallel)

    return ToolFormat(
        marks.block_start or marks.call.start,
        marks.block_end or marks.call_end,
        parse_tool_call,
        make_reader,
        calls_rule,
        {marks.call.start: make_bare_reader} if may_be_bare else {},
    )


DSML = "｜DSML｜"
IS_TEXT = ' string="{is_text}"'

FORMATS: Mapping[str, ToolFormat] = {
    "qwen3_coder": tag_format(function_tags(), may_be_bare=True),
    "glm4_moe": tag_format(argument_tags("")),
    "longcat": tag_format(argument_tags("longcat_")),
    "minimax_m2": tag_format(invoke_tags("minimax:tool_call")),
    "minimax_m3": tag_format(element_tags()),
    "minicpm5": tag_format(xml_tags()),
    "atem": tag_format(invoke_tags("atem:function_calls", "atem:"), may_be_bare=True),
    "deepseek_v32": tag_format(invoke_tags(f"{DSML}function_calls", DSML, IS_TEXT)),
    "deepseek_v4": tag_format(invoke_tags(f"{DSML}tool_calls", DSML, IS_TEXT)),
    "functiongemma": gemma_format("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": gemma_format("<|tool_call>", "<tool_call|>", '<|"|>'),
}
