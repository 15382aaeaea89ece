"""A conversation -> the text that the model's own chat template makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jinja2

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.sequence import ChatMessage, ChatPrompt, ImagePart, TextPart
from mlx_server.errors import InvalidRequest
from mlx_server.parsers.tools import template_knows_tools
from mlx_server.parsers.tools.prompting import describe_in_prompt

# Arguments of apply_chat_template that are ours to give; anything else reaches the template.
RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "processor_kwargs",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
MAX_TEMPLATE_MESSAGE = 200
# What the code of a template can raise beside jinja2's own errors.
TEMPLATE_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
OPENED_REASONING = re.compile(r"<(?P<tag>think|thinking|seed:think)>\s*\Z")
STRING_TEST = re.compile(r"is (not )?string")


def render(loaded: LoadedModel, prompt: ChatPrompt) -> str:
    """The prompt's text up to where the model goes on; a refusal by the template is a 400."""
    text = _conversation(loaded, prompt)
    return _without_open_reasoning(text) + prompt.prefill if prompt.prefill else text


def _without_open_reasoning(text: str) -> str:
    """The answer shall go on behind it; some templates open reasoning whatever they are told."""
    opened = OPENED_REASONING.search(text)
    return f"{text}</{opened['tag']}>\n\n" if opened else text


def _conversation(loaded: LoadedModel, prompt: ChatPrompt) -> str:
    """The text up to where the assistant begins."""
    if loaded.chat_template is None:
        raise InvalidRequest(
            "This model has no chat template. Use /v1/completions with a raw prompt.",
            param="messages",
        )
    if reserved := RESERVED_KWARGS & prompt.template_kwargs.keys():
        raise InvalidRequest(
            f"chat_template_kwargs may not set {', '.join(sorted(reserved))}.",
            param="chat_template_kwargs",
        )
    if not template_knows_tools(loaded.chat_template):
        prompt = describe_in_prompt(prompt, loaded.tool_format)
    try:
        return _apply(loaded, prompt)
    except jinja2.TemplateError as error:
        if prompt.messages[0].role != "system":
            raise _refused(error) from error
    except TEMPLATE_FAILURES as error:
        raise _refused(error) from error
    return _render_without_system_role(loaded, prompt)


def _render_without_system_role(loaded: LoadedModel, prompt: ChatPrompt) -> str:
    """Some templates know no system role: their system text opens the first user turn."""
    try:
        return _apply(loaded, merge_system_into_user(prompt))
    except (jinja2.TemplateError, *TEMPLATE_FAILURES) as error:
        raise _refused(error) from error


def merge_system_into_user(prompt: ChatPrompt) -> ChatPrompt:
    system = [m for m in prompt.messages if m.role == "system"]
    others = [m for m in prompt.messages if m.role != "system"]
    lead = tuple(part for message in system for part in message.content)
    if not others or others[0].role != "user":
        others.insert(0, ChatMessage("user"))
    first = others[0]
    merged = ChatMessage("user", (*lead, *first.content), name=first.name)
    return ChatPrompt((merged, *others[1:]), prompt.tools, prompt.template_kwargs)


def _apply(loaded: LoadedModel, prompt: ChatPrompt) -> str:
    text: str = loaded.tokenizer.apply_chat_template(
        [_template_message(message, loaded) for message in prompt.messages],
        tools=[dict(tool) for tool in prompt.tools] or None,
        chat_template=loaded.chat_template,
        add_generation_prompt=True,
        tokenize=False,
        **prompt.template_kwargs,
    )
    return text


def _template_message(message: ChatMessage, loaded: LoadedModel) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": _content(message, loaded)}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    if message.reasoning_content is not None:
        rendered["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return rendered


def _content(message: ChatMessage, loaded: LoadedModel) -> str | list[Mapping[str, str]]:
    """A plain string where that says it all: many templates know no list of parts."""
    has_images = any(isinstance(part, ImagePart) for part in message.content)
    wants_parts = loaded.has_vision and not STRING_TEST.search(loaded.chat_template or "")
    if not has_images and not wants_parts:
        return "\n".join(part.text for part in message.content if isinstance(part, TextPart))
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.content
    ]


def _refused(error: Exception) -> InvalidRequest:
    # what a template raises itself; the engine's own errors name what they did not find, and
    # clients give names
    if type(error) is jinja2.TemplateError and error.message:
        reason = error.message[:MAX_TEMPLATE_MESSAGE]
        return InvalidRequest(
            f"The model's chat template refused the messages: {reason}", param="messages"
        )
    return InvalidRequest(
        "The model's chat template cannot render these messages. Check roles, order and content.",
        param="messages",
    )
