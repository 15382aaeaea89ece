"""The tools of a messages request, and whether they must be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_server.api.parameters import unsupported
from mlx_server.engine.sequence import ToolChoice
from mlx_server.errors import InvalidRequest
from mlx_server.messages_wire import CountTokensRequest, MessagesTool


def shown_tools(wire: CountTokensRequest) -> tuple[Mapping[str, Any], ...]:
    tools = tuple(tool_object(tool, f"tools.{i}") for i, tool in enumerate(wire.tools))
    # Without a choice the model is not shown the tools: it would only be invited to call them.
    return () if wire.tool_choice.type == "none" else tools


def tool_object(tool: MessagesTool, param: str) -> Mapping[str, Any]:
    """The same as an OpenAI tool, the form in which templates know tools."""
    refuse_server_side(tool, param)
    if not tool.name:
        raise InvalidRequest(f"`{param}.name` is required.", param=f"{param}.name")
    if tool.input_schema is None:
        raise InvalidRequest(f"`{param}.input_schema` is required.", param=f"{param}.input_schema")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def refuse_server_side(tool: MessagesTool, param: str) -> None:
    """Raise for a tool that Anthropic's servers would run, find or call themselves."""
    if tool.type not in (None, "custom"):
        raise unsupported(f"{param}.type", ("custom",))
    if tool.defer_loading:
        raise unsupported(f"{param}.defer_loading", (False,))
    if tool.allowed_callers not in (None, ["direct"]):
        raise unsupported(f"{param}.allowed_callers", (["direct"],))
    if tool.input_examples:
        raise unsupported(f"{param}.input_examples", ([],))


def tool_choice(wire: CountTokensRequest) -> ToolChoice:
    choice = wire.tool_choice
    is_parallel = not choice.disable_parallel_tool_use
    if choice.type in ("auto", "none"):
        return ToolChoice(is_parallel=is_parallel)
    if not wire.tools:
        raise InvalidRequest(
            "`tool_choice` asks for a call; list the `tools` that may be called.",
            param="tool_choice",
        )
    if choice.type == "any":
        return ToolChoice("required", is_parallel=is_parallel)
    if choice.name not in {tool.name for tool in wire.tools}:
        raise InvalidRequest(
            "`tool_choice.name` must be the name of one of the `tools`.", param="tool_choice.name"
        )
    return ToolChoice("named", choice.name, is_parallel)
