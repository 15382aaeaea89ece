"""What a response repeats of its request."""

from __future__ import annotations

from typing import Any

from mlx_server.responses_wire import (
    RequestEcho,
    ResponsesRequest,
    ResponsesTool,
    ResponsesToolChoice,
    TextFormat,
    TextOptions,
)


def request_echo(wire: ResponsesRequest) -> RequestEcho:
    """Nulls stand for what the server or the model decides."""
    echo: RequestEcho = {
        "background": False,
        "instructions": wire.instructions,
        "max_output_tokens": wire.max_output_tokens,
        "max_tool_calls": None,
        "metadata": wire.metadata,
        "parallel_tool_calls": wire.parallel_tool_calls,
        "previous_response_id": wire.previous_response_id,
        "prompt_cache_key": wire.prompt_cache_key,
        "reasoning": {
            "effort": wire.reasoning.effort,
            "summary": wire.reasoning.summary or wire.reasoning.generate_summary,
        },
        "safety_identifier": wire.safety_identifier,
        "service_tier": "default",
        "store": wire.store,
        "temperature": wire.temperature,
        "text": text_options(wire.text),
        "tool_choice": tool_choice(wire.tool_choice),
        "tools": [function_tool(tool) for tool in wire.tools],
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": wire.top_p,
        "truncation": "disabled",
    }
    if wire.prompt_cache_retention is not None:
        echo["prompt_cache_retention"] = wire.prompt_cache_retention.replace("-", "_")
    if wire.user is not None:
        echo["user"] = wire.user
    return echo


def text_options(text: TextOptions) -> dict[str, Any]:
    chosen = text.format or TextFormat()
    form = chosen.model_dump(by_alias=True, exclude_none=True)
    return {"format": {"type": chosen.type, **form}, "verbosity": text.verbosity or "medium"}


def tool_choice(choice: ResponsesToolChoice) -> str | dict[str, Any]:
    if choice.type in ("auto", "none", "required"):
        return choice.type
    return choice.model_dump(exclude_none=True)


def function_tool(tool: ResponsesTool) -> dict[str, Any]:
    echoed: dict[str, Any] = {
        "type": tool.type,
        "name": tool.name,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    if tool.description is not None:
        echoed["description"] = tool.description
    return echoed
