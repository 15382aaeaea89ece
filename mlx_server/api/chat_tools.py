"""The tools of a chat request, and whether they must be called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_server.engine.sequence import ToolChoice
from mlx_server.errors import InvalidRequest
from mlx_server.models import ChatCompletionRequest, Tool

ToolObject = Mapping[str, Any]


def shown_tools(wire: ChatCompletionRequest) -> tuple[ToolObject, ...]:
    """Those that may be called: a model that sees others would only be invited to call them."""
    tools = tuple(tool_object(tool, f"tools.{i}") for i, tool in enumerate(wire.tools))
    choice = wire.tool_choice
    if choice.type == "none":
        return ()
    if choice.allowed_tools is not None:
        allowed = {tool.function.name for tool in choice.allowed_tools.tools}
        return tuple(tool for tool in tools if name_of(tool) in allowed)
    return tools


def name_of(tool: ToolObject) -> str:
    name: str = tool["function"]["name"]
    return name


def tool_choice(wire: ChatCompletionRequest) -> ToolChoice:
    choice, is_parallel = wire.tool_choice, wire.parallel_tool_calls
    if choice.type in ("auto", "none"):
        return ToolChoice(is_parallel=is_parallel)
    if not wire.tools:
        raise InvalidRequest(
            "`tool_choice` asks for a call; list the `tools` that may be called.",
            param="tool_choice",
        )
    if choice.type == "required":
        return ToolChoice("required", is_parallel=is_parallel)
    if choice.type == "function":
        if choice.function is None:
            raise InvalidRequest(
                "`tool_choice.function` is required for this type.", param="tool_choice.function"
            )
        refuse_undeclared(wire, choice.function.name, "tool_choice.function.name")
        return ToolChoice("named", choice.function.name, is_parallel)
    return allowed_tools(wire)


def allowed_tools(wire: ChatCompletionRequest) -> ToolChoice:
    allowed = wire.tool_choice.allowed_tools
    if allowed is None:
        raise InvalidRequest(
            "`tool_choice.allowed_tools` is required for this type.",
            param="tool_choice.allowed_tools",
        )
    for i, tool in enumerate(allowed.tools):
        param = f"tool_choice.allowed_tools.tools.{i}.function.name"
        refuse_undeclared(wire, tool.function.name, param)
    return ToolChoice(allowed.mode, is_parallel=wire.parallel_tool_calls)


def refuse_undeclared(wire: ChatCompletionRequest, name: str, param: str) -> None:
    if name not in {tool.function.get("name") for tool in wire.tools}:
        raise InvalidRequest(f"`{param}` must be the name of one of the `tools`.", param=param)


def tool_object(tool: Tool, param: str) -> Mapping[str, Any]:
    function = {name: value for name, value in tool.function.items() if value is not None}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequest(
            f"`{param}.function.name` must be a string.", param=f"{param}.function.name"
        )
    if not isinstance(function.get("description", ""), str):
        raise InvalidRequest(
            f"`{param}.function.description` must be a string.",
            param=f"{param}.function.description",
        )
    if not isinstance(function.get("parameters", {}), dict):
        raise InvalidRequest(
            f"`{param}.function.parameters` must be an object.",
            param=f"{param}.function.parameters",
        )
    return {"type": "function", "function": function}
