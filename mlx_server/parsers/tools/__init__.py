"""Which tool formats there are, and which of them a model writes."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_server.parsers.tools import gemma_code, json_tools
from mlx_server.parsers.tools.templates import template_knows_tools
from mlx_server.parsers.tools.tool_format import ToolFormat

__all__ = ["TOOL_FORMATS", "ToolFormat", "detect_tool_format", "template_knows_tools"]

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
}


def detect_tool_format(chat_template: str | None, model_type: str) -> str:
    """The name in TOOL_FORMATS of what the model writes, or is told to write by our own prompt."""
    if chat_template and gemma_code.tool_call_start in chat_template:
        return "gemma_code"
    if model_type.startswith("gemma3") and not template_knows_tools(chat_template):
        return "gemma_code"
    return "json_tools"
