"""The tools and the form of the answer that a Responses request asks for, in the engine's terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlx_server.api.parameters import unsupported
from mlx_server.engine.sequence import ResponseFormat, ToolChoice
from mlx_server.errors import InvalidRequest
from mlx_server.responses_wire import ResponsesRequest, ResponsesTool, TextFormat

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def shown_tools(wire: ResponsesRequest) -> tuple[Mapping[str, Any], ...]:
    """Those that may be called: a model that sees others would only be invited to call them."""
    tools = tuple(tool_object(tool, f"tools.{i}") for i, tool in enumerate(wire.tools))
    choice = wire.tool_choice
    if choice.type == "none":
        return ()
    if choice.type == "allowed_tools":
        allowed = {tool.name for tool in choice.tools or ()}
        return tuple(tool for tool in tools if tool["function"]["name"] in allowed)
    return tools


def tool_object(tool: ResponsesTool, param: str) -> Mapping[str, Any]:
    """The same as a tool of chat completions, the form in which templates know tools."""
    if tool.type != "function":
        raise unsupported(f"{param}.type", ("function",))
    if tool.defer_loading:
        raise unsupported(f"{param}.defer_loading", (False,))
    if tool.allowed_callers not in (None, ["direct"]):
        raise unsupported(f"{param}.allowed_callers", (["direct"],))
    if not tool.name:
        raise InvalidRequest(f"`{param}.name` is required.", param=f"{param}.name")
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def tool_choice(wire: ResponsesRequest) -> ToolChoice:
    choice, is_parallel = wire.tool_choice, wire.parallel_tool_calls
    names = {tool.name for tool in wire.tools}
    if choice.type in ("auto", "none"):
        return ToolChoice(is_parallel=is_parallel)
    if not names:
        raise InvalidRequest(
            "`tool_choice` asks for a call; list the `tools` that may be called.",
            param="tool_choice",
        )
    if choice.type == "required":
        return ToolChoice("required", is_parallel=is_parallel)
    if choice.type == "function":
        refuse_undeclared(choice.name, names, "tool_choice.name")
        return ToolChoice("named", choice.name, is_parallel)
    if not choice.tools:
        raise InvalidRequest("`tool_choice.tools` is required.", param="tool_choice.tools")
    for i, tool in enumerate(choice.tools):
        refuse_undeclared(tool.name, names, f"tool_choice.tools.{i}.name")
    return ToolChoice(choice.mode or "auto", is_parallel=is_parallel)


def refuse_undeclared(name: str | None, names: set[str | None], param: str) -> None:
    if name is None or name not in names:
        raise InvalidRequest(f"`{param}` must be the name of one of the `tools`.", param=param)


def response_format(wire: ResponsesRequest) -> ResponseFormat | None:
    asked = wire.text.format or TextFormat()
    if asked.type == "text":
        return None
    if asked.type == "json_object":
        return ResponseFormat("json_schema", ANY_OBJECT, "text.format")
    if asked.json_schema is None:
        raise InvalidRequest("`text.format.schema` is required.", param="text.format.schema")
    if not asked.name:
        raise InvalidRequest("`text.format.name` is required.", param="text.format.name")
    return ResponseFormat("json_schema", asked.json_schema, "text.format.schema")
