"""The tool formats that are written in tags."""

from __future__ import annotations

from collections.abc import Mapping

from mlx_server.parsers.tools.tool_format import ToolFormat

FORMATS: Mapping[str, ToolFormat] = {}
