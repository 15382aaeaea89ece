"""Brings messages and tools of a chat request into the form that prompts are rendered from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlx_server.api.body import decode_json
from mlx_server.api.parameters import unsupported
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    ImagePart,
    Role,
    TextPart,
    ToolCall,
)
from mlx_server.errors import InvalidRequest
from mlx_server.models import ChatCompletionRequest, HistoryCall, Message, Part, Tool

ROLES: Mapping[str, Role] = {
    "developer": "system",
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
IMAGE_TYPES = frozenset({"image_url", "input_image"})
TEXT_TYPES = frozenset({"text", "input_text", "refusal"})


def chat_prompt(wire: ChatCompletionRequest) -> ChatPrompt:
    messages = tuple(
        chat_message(message, f"messages.{i}") for i, message in enumerate(wire.messages)
    )
    tools = tuple(tool_object(tool, f"tools.{i}") for i, tool in enumerate(wire.tools))
    # Without a choice the model is not shown the tools: it would only be invited to call them.
    return ChatPrompt(messages, () if wire.tool_choice == "none" else tools, template_kwargs(wire))


def template_kwargs(wire: ChatCompletionRequest) -> Mapping[str, Any]:
    kwargs = dict(wire.chat_template_kwargs)
    if wire.reasoning_effort is not None:
        kwargs["reasoning_effort"] = wire.reasoning_effort
        if wire.reasoning_effort == "none":
            kwargs["enable_thinking"] = False
    if wire.thinking is not None:
        if wire.thinking.budget_tokens is not None:
            raise unsupported("thinking.budget_tokens")
        kwargs["enable_thinking"] = wire.thinking.type == "enabled"
    if wire.enable_thinking is not None:
        kwargs["enable_thinking"] = wire.enable_thinking
    return kwargs


def chat_message(message: Message, param: str) -> ChatMessage:
    if message.audio is not None:
        raise unsupported(f"{param}.audio")
    calls = message.tool_calls or []
    if message.function_call is not None:
        calls = [*calls, HistoryCall(function=message.function_call)]
    if calls and message.role != "assistant":
        raise InvalidRequest(
            "Only an assistant message may have tool calls.", param=f"{param}.tool_calls"
        )
    return ChatMessage(
        role=ROLES[message.role],
        content=tuple(content_parts(message, param)),
        name=message.name,
        tool_calls=tuple(tool_call(call) for call in calls),
        tool_call_id=message.tool_call_id,
        reasoning_content=message.reasoning_content or message.reasoning or None,
    )


def content_parts(message: Message, param: str) -> Iterator[ContentPart]:
    for i, part in enumerate(message.content or []):
        place = f"{param}.content.{i}"
        if part.type in IMAGE_TYPES:
            if message.role != "user":
                raise InvalidRequest("Only a user message may have images.", param=place)
            yield image_part(part, f"{place}.image_url")
        elif part.type in TEXT_TYPES:
            text = part.refusal if part.type == "refusal" else part.text
            if text is None:
                raise InvalidRequest(
                    f"A content part of this type needs `{text_field(part)}`.",
                    param=f"{place}.{text_field(part)}",
                )
            if text:
                yield TextPart(text)
        else:
            raise unsupported(f"{place}.{part.type}")
    if not message.content and message.refusal:
        yield TextPart(message.refusal)


def text_field(part: Part) -> str:
    return "refusal" if part.type == "refusal" else "text"


def image_part(part: Part, param: str) -> ImagePart:
    if part.image_url is None:
        raise InvalidRequest("A content part of this type needs `image_url`.", param=param)
    return ImagePart(part.image_url.url, param)


def tool_call(call: HistoryCall) -> ToolCall:
    return ToolCall(call.id or "", call.function.name, call_arguments(call.function.arguments))


def call_arguments(sent: str | dict[str, Any] | None) -> Mapping[str, Any]:
    """The arguments as an object.

    A call that was cut while it was streamed comes back as text, and stays text.
    """
    if isinstance(sent, dict):
        return sent
    if not sent or not sent.strip():
        return {}
    try:
        decoded = decode_json(sent.encode())
    except ValueError:
        return {"arguments": sent}
    if decoded is None or isinstance(decoded, str | dict):
        return call_arguments(decoded)
    return {"arguments": decoded}


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
