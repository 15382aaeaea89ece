"""Which tool formats there are, and which of them a model writes."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_server.parsers.names import AUTO, NONE
from mlx_server.parsers.tools import gemma_code, harmony_call, json_tools
from mlx_server.parsers.tools.detection import DEFAULT, written_by
from mlx_server.parsers.tools.special_marks import special_marks
from mlx_server.parsers.tools.templates import template_knows_tools, template_variables
from mlx_server.parsers.tools.tool_format import ToolFormat

__all__ = [
    "DEFAULT",
    "TOOL_FORMATS",
    "ToolFormat",
    "detect_tool_format",
    "marks_of",
    "template_knows_tools",
    "template_variables",
    "tool_format_of",
]

TOOL_FORMATS: Mapping[str, ToolFormat] = {
    "json_tools": ToolFormat(
        json_tools.tool_call_start,
        json_tools.tool_call_end,
        json_tools.parse_tool_call,
        json_tools.make_reader,
        json_tools.calls_rule,
    ),
    "gemma_code": ToolFormat(
        gemma_code.tool_call_start,
        gemma_code.tool_call_end,
        gemma_code.parse_tool_call,
        gemma_code.make_reader,
    ),
    "harmony": ToolFormat(
        harmony_call.tool_call_start,
        harmony_call.tool_call_end,
        harmony_call.parse_tool_call,
        harmony_call.make_reader,
        harmony_call.calls_rule,
    ),
}


def detect_tool_format(chat_template: str | None, model_type: str) -> str:
    """The name in TOOL_FORMATS of what the model writes, or is told to write by our own prompt."""
    return _readable(written_by(chat_template, model_type))


def tool_format_of(asked_for: str, chat_template: str | None, model_type: str) -> str | None:
    """The format that a user has asked for, who may leave it to the template or want none."""
    if asked_for == AUTO:
        return detect_tool_format(chat_template, model_type)
    return None if asked_for == NONE else _readable(asked_for)


def marks_of(tool_format: str) -> tuple[str, ...]:
    """All texts that have a meaning in the format."""
    form = TOOL_FORMATS[tool_format]
    return (*form.readers, form.tool_call_end, *special_marks(tool_format))


def _readable(name: str) -> str:
    return name if name in TOOL_FORMATS else DEFAULT
