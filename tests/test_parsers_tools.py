from __future__ import annotations

import pytest

from mlx_server.parsers.tools import TOOL_FORMATS, detect_tool_format, template_knows_tools
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
    ],
)
def test_the_format_follows_the_template_and_the_family(
    template: str | None, model_type: str, expected: str
) -> None:
    assert detect_tool_format(template, model_type) == expected
    assert expected in TOOL_FORMATS
