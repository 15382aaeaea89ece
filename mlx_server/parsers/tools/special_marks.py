"""The texts of a tool format that many tokenizers take as special tokens, which have no text else.

The markers around a block of calls are known of each format; here are those inside of one.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlx_server.parsers.harmony_marks import MARKS

SPECIAL_MARKS: Mapping[str, tuple[str, ...]] = {
    "cohere": ("<|START_ACTION|>", "<|END_ACTION|>"),
    "deepseek_v3": (
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<\uff5ctool\u2581call\u2581begin\uff5c>",
        "<\uff5ctool\u2581sep\uff5c>",
        "<\uff5ctool\u2581call\u2581end\uff5c>",
        "<\uff5ctool\u2581calls\u2581end\uff5c>",
    ),
    "deepseek_v32": ("\uff5cDSML\uff5c",),
    "functiongemma": ("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "glm4_moe": ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "granite": ("<|tool_call|>",),
    "harmony": MARKS,
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
    ),
    "llama3": ("<|python_tag|>",),
    "llama4_pythonic": ("<|python_start|>", "<|python_end|>"),
    "longcat": (
        "<longcat_arg_key>",
        "</longcat_arg_key>",
        "<longcat_arg_value>",
        "</longcat_arg_value>",
    ),
    "minimax_m3": ("]<]minimax[>[",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "pythonic": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "solar_open": (
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    ),
}
SAME_MARKS: Mapping[str, str] = {"deepseek_v31": "deepseek_v3", "deepseek_v4": "deepseek_v32"}


def special_marks(tool_format: str) -> tuple[str, ...]:
    return SPECIAL_MARKS.get(SAME_MARKS.get(tool_format, tool_format), ())
