"""The tool formats that are written in JSON or in Python."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_server.parsers.tools import gemma_code, json_tools, mistral
from mlx_server.parsers.tools.headed_formats import BRACKETS, HEADED_FORMATS, reader_of
from mlx_server.parsers.tools.json_formats import JSON_FORMATS
from mlx_server.parsers.tools.python_calls import PYTHON_FORMATS
from mlx_server.parsers.tools.tool_format import ToolFormat

FORMATS: Mapping[str, ToolFormat] = {
    "json_tools": ToolFormat(
        json_tools.tool_call_start,
        json_tools.tool_call_end,
        json_tools.parse_tool_call,
        json_tools.make_reader,
        json_tools.calls_rule,
        {BRACKETS.block_start: reader_of(BRACKETS)},
    ),
    "gemma_code": ToolFormat(
        gemma_code.tool_call_start,
        gemma_code.tool_call_end,
        gemma_code.parse_tool_call,
        gemma_code.make_reader,
        gemma_code.calls_rule,
    ),
    "mistral": ToolFormat(
        mistral.tool_call_start,
        mistral.tool_call_end,
        mistral.parse_tool_call,
        mistral.make_reader,
        mistral.calls_rule,
    ),
    **JSON_FORMATS,
    **HEADED_FORMATS,
    **PYTHON_FORMATS,
}
