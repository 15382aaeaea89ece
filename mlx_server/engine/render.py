"""A conversation -> the text that the model's own chat template makes of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jinja2

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.sequence import ChatMessage, ChatPrompt, ImagePart, TextPart, ToolCall
from mlx_server.engine.template_habits import TEMPLATE_FAILURES, wants_arguments_as_text
from mlx_server.errors import InvalidRequest
from mlx_server.parsers.harmony_marks import CHANNEL, MESSAGE
from mlx_server.parsers.reasoning import HARMONY, REASONING_FORMATS, opens_reasoning
from mlx_server.parsers.tools import DEFAULT, template_knows_tools, template_variables
from mlx_server.parsers.tools.call import to_json
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
STRING_TEST = re.compile(r"is (not )?string")
HARMONY_ANSWER = f"{CHANNEL}final{MESSAGE}"
# The efforts that harmony knows, by those that it does not.
HARMONY_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}


def render(loaded: LoadedModel, prompt: ChatPrompt) -> str:
    """The prompt's text up to where the model goes on; a refusal by the template is a 400."""
    text = _conversation(loaded, prompt)
    return _up_to_answer(loaded, text) + prompt.prefill if prompt.prefill else text


def _up_to_answer(loaded: LoadedModel, text: str) -> str:
    """The text up to the first word for the user; some templates open reasoning whatever they are
    told.
    """
    name = loaded.reasoning_format
    if name == HARMONY:
        return f"{text}{HARMONY_ANSWER}"
    if name is not None and opens_reasoning(name, text):
        return f"{text}{REASONING_FORMATS[name].ends[0]}\n\n"
    return text


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
        prompt = describe_in_prompt(prompt, loaded.tool_format or DEFAULT)
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
    return replace(prompt, messages=(merged, *others[1:]))


def _apply(loaded: LoadedModel, prompt: ChatPrompt) -> str:
    text: str = loaded.tokenizer.apply_chat_template(
        [_template_message(message, loaded) for message in prompt.messages],
        tools=[dict(tool) for tool in prompt.tools] or None,
        chat_template=loaded.chat_template,
        add_generation_prompt=prompt.add_generation_prompt,
        tokenize=False,
        **_template_kwargs(prompt.template_kwargs, loaded),
    )
    return text


def _template_kwargs(given: Mapping[str, Any], loaded: LoadedModel) -> Mapping[str, Any]:
    """The switches in the words of the template."""
    kwargs = dict(given)
    is_on = kwargs.get("enable_thinking")
    if is_on is not None and "thinking" in template_variables(loaded.chat_template):
        kwargs.setdefault("thinking", is_on)
    effort = kwargs.get("reasoning_effort")
    if loaded.reasoning_format == HARMONY and isinstance(effort, str):
        kwargs["reasoning_effort"] = HARMONY_EFFORTS.get(effort, effort)
    return kwargs


def _template_message(message: ChatMessage, loaded: LoadedModel) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": _content(message, loaded)}
    if message.name is not None:
        rendered["name"] = message.name
    if message.tool_call_id is not None:
        rendered["tool_call_id"] = message.tool_call_id
    # the templates of harmony refuse a call that has both reasoning and content
    is_refused = loaded.reasoning_format == HARMONY and message.tool_calls and message.content
    if message.reasoning_content is not None and not is_refused:
        rendered["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        rendered["tool_calls"] = [_template_call(call, loaded) for call in message.tool_calls]
    return rendered


def _template_call(call: ToolCall, loaded: LoadedModel) -> dict[str, Any]:
    arguments: str | dict[str, Any] = dict(call.arguments)
    if wants_arguments_as_text(loaded.chat_template or ""):
        arguments = to_json(arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


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
