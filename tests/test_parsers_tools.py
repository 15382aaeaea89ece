from __future__ import annotations

import pytest

from mlx_server.parsers.names import REASONING_PARSERS, TOOL_PARSERS
from mlx_server.parsers.reasoning import REASONING_FORMATS, reasoning_format_of
from mlx_server.parsers.tools import (
    TOOL_FORMATS,
    detect_tool_format,
    template_knows_tools,
    tool_format_of,
)
from mlx_server.parsers.tools.detection import written_by
from mlx_server.parsers.tools.templates import template_fault
from tests.tiny import templates


@pytest.mark.parametrize(
    "template",
    [
        templates.CHATML,
        "{% if not tools is defined %}{% set tools = none %}{% endif %}",
        "{% macro list() %}{% for tool in tools %}{{ tool }}{% endfor %}{% endmacro %}",
        "{% generation %}{{ tools }}{% endgeneration %}",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ tools }}",
    ],
)
def test_a_template_that_reads_tools_knows_them(template: str | None) -> None:
    assert template_knows_tools(template)


@pytest.mark.parametrize(
    "template",
    [
        None,
        "",
        templates.GEMMA3,
        templates.NO_SYSTEM,
        "tools {{ 'tools' }} {# tools #} {{ message.tools }}",
        "{% set tools = [] %}{{ tools }}",
        "{% macro show(tools) %}{{ tools }}{% endmacro %}",
        "{{ tools",
    ],
)
def test_a_template_that_only_mentions_tools_does_not_know_them(template: str | None) -> None:
    assert not template_knows_tools(template)


@pytest.mark.parametrize(
    ("template", "model_type", "expected"),
    [
        (templates.CHATML, "qwen3_vl", "json_tools"),
        (templates.NO_SYSTEM, "llama", "json_tools"),
        (None, "llama", "json_tools"),
        (templates.GEMMA3, "gemma3", "gemma_code"),
        (templates.GEMMA3, "gemma3_text", "gemma_code"),
        (None, "gemma3n", "gemma_code"),
        (templates.CHATML, "gemma3", "json_tools"),
        ("{{ tools }} answer in ```tool_code", "other", "gemma_code"),
        ("<|start|>assistant<|channel|>final<|message|>", "gpt_oss", "harmony"),
        ("{{ tools }} <some_tag_nobody_knows>", "other", "json_tools"),
    ],
)
def test_the_format_follows_the_template_and_the_family(
    template: str | None, model_type: str, expected: str
) -> None:
    assert detect_tool_format(template, model_type) == expected
    assert expected in TOOL_FORMATS


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("'<|tool_call>call:' + name", "gemma4"),
        ("<start_function_call>call:", "functiongemma"),
        ("<longcat_tool_call>", "longcat"),
        ("]<]minimax[>[<tool_call>", "minimax_m3"),
        ("<minimax:tool_call>", "minimax_m2"),
        ("<|tool_calls|><|tool_call:begin|>", "solar_open"),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\\n```json",
            "deepseek_v3",
        ),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'+name+'<｜tool▁sep｜>", "deepseek_v31"),
        ("<tool_call>name<arg_key>", "glm4_moe"),
        ('<function name="f"><param name="p">', "minicpm5"),
        ("<tool_call>\\n<function=", "qwen3_coder"),
        ("<|START_ACTION|>", "cohere"),
        ("<|tool_call|>[", "granite"),
        ("[TOOL_CALLS][ARGS]", "mistral"),
        ("<|tool_call_start|>[f(a=1)]<|tool_call_end|>", "pythonic"),
        ("<|header_start|> [func_name1(params_name1=params_value1)]", "llama4_pythonic"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ('<|python_tag|> {"name": function name, "parameters": ', "llama3"),
        ("<tool_call>\\n{", "json_tools"),
    ],
)
def test_the_marks_of_a_template_tell_the_format(template: str, expected: str) -> None:
    assert written_by(template, "any") == expected
    assert expected in TOOL_PARSERS.values()


def test_every_format_has_a_name_to_ask_for_it_by() -> None:
    assert set(TOOL_FORMATS) <= set(TOOL_PARSERS.values())
    assert set(REASONING_PARSERS.values()) == set(REASONING_FORMATS)


def test_what_is_asked_for_counts_more_than_the_template() -> None:
    assert tool_format_of("auto", templates.CHATML, "llama") == "json_tools"
    assert tool_format_of("none", templates.CHATML, "llama") is None
    assert tool_format_of("gemma_code", templates.CHATML, "llama") == "gemma_code"
    assert reasoning_format_of("auto", templates.THINKING) == "think"
    assert reasoning_format_of("none", templates.THINKING) is None
    assert reasoning_format_of("mistral", templates.THINKING) == "mistral"


def test_a_fault_of_a_template_is_told_with_its_line() -> None:
    assert template_fault(templates.CHATML) is None
    assert "line 2" in str(template_fault("{% if x %}\n{{ x }"))
