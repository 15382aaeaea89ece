"""What a chat template makes of what it is given, found out by rendering a conversation."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

# What the code of a template can raise beside jinja2's own errors.
TEMPLATE_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
KEY = "probe_key"
AS_PYTHON = f"{{'{KEY}'"
AS_JSON = f'{{"{KEY}"'
# some templates take no others
CALL_ID = "abcdefghi"
TOOL = {
    "type": "function",
    "function": {"name": "probe", "description": "", "parameters": {"type": "object"}},
}


@lru_cache(maxsize=8)
def wants_arguments_as_text(chat_template: str) -> bool:
    """Whether the template writes the arguments of calls as they are, and so wants them as JSON."""
    written = _written(chat_template, {KEY: "a"})
    if written is not None and AS_PYTHON not in written:
        return False
    return AS_JSON in (_written(chat_template, f'{AS_JSON}: "a"}}') or "")


def _written(chat_template: str, arguments: Any) -> str | None:
    """A conversation with a call of these arguments, None if the template cannot render it."""
    call = {
        "id": CALL_ID,
        "type": "function",
        "function": {"name": "probe", "arguments": arguments},
    }
    conversation = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "probe", "tool_call_id": CALL_ID, "content": "b"},
    ]
    try:
        texts, _ = render_jinja_template(
            [conversation],
            tools=[TOOL],
            chat_template=chat_template,
            add_generation_prompt=True,
            bos_token="",
            eos_token="",
        )
    except (jinja2.TemplateError, *TEMPLATE_FAILURES):
        return None
    return "".join(texts)
