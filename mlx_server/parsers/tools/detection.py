"""Which tool format a model was taught, by the marks that stand in its chat template."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_server.parsers.tools.templates import template_knows_tools

DEFAULT = "json_tools"
GEMMA = "gemma_code"

# In this order: the marks of some formats stand in the templates of others as well.
TEMPLATE_MARKS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("<start_function_call>",)),
    (GEMMA, ("```tool_code",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("minimax_m3", ("]<]minimax[>[",)),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("atem", ("<atem:function_calls>",)),
    ("deepseek_v4", ("\uff5cDSML\uff5ctool_calls",)),
    ("deepseek_v32", ("\uff5cDSML\uff5c",)),
    ("solar_open", ("<|tool_call:begin|>",)),
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v3", ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "```json")),
    ("deepseek_v31", ("<\uff5ctool\u2581calls\u2581begin\uff5c>",)),
    ("pythonic", ("<|tool_call_start|>",)),
    ("pythonic", ("<|tool_list_start|>",)),
    ("glm4_moe", ("<arg_key>",)),
    ("minicpm5", ("<function name=", "<param name=")),
    ("qwen3_coder", ("<function=",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("granite", ("<|tool_call|>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("xlam", ("make calls in a single JSON array",)),
    ("llama4_pythonic", ("<|header_start|>", "func_name1(")),
    ("pythonic", ("func_name1(",)),
    ("llama3", ("<|python_tag|>",)),
    ("llama3", ('{"name": function name, "parameters":',)),
)


def written_by(chat_template: str | None, model_type: str) -> str:
    """The name of the format, which need not be one that can be read here."""
    for name, marks in TEMPLATE_MARKS:
        if chat_template and all(mark in chat_template for mark in marks):
            return name
    if model_type.startswith("gemma3") and not template_knows_tools(chat_template):
        return GEMMA
    return DEFAULT
