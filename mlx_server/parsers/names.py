"""The names by which users ask for formats: ours, and those that other servers gave them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

AUTO = "auto"
NONE = "none"


def by_name(families: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """Each format by its own name and by its others."""
    own = {name: name for name in families}
    return {**{other: name for name, others in families.items() for other in others}, **own}


TOOL_PARSERS: Mapping[str, str] = by_name(
    {
        "json_tools": ("hermes", "iquest_coder_v1", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl"),
        "qwen3_coder": ("nemotron3_nano", "qwen3_5", "qwen3_xml", "step_35", "step3p5"),
        "glm4_moe": ("glm45", "glm47", "glm47_flash", "laguna"),
        "minimax_m2": ("minimax",),
        "longcat": ("longcat_flash_lite",),
        "minicpm5": (),
        "minimax_m3": (),
        "atem": ("muse_spark",),
        "functiongemma": ("function_gemma",),
        "gemma4": (),
        "gemma_code": ("gemma3",),
        "kimi_k2": (),
        "solar_open": (),
        "mistral": (),
        "llama3": ("llama3_json", "llama4_json"),
        "pythonic": (),
        "llama4_pythonic": (),
        "deepseek_v3": (),
        "deepseek_v31": (),
        "deepseek_v32": (),
        "deepseek_v4": (),
        "granite": (),
        "cohere": ("cohere2", "cohere_command", "cohere_command3"),
        "xlam": (),
        "harmony": ("gpt_oss", "openai", "openai_gptoss"),
    }
)

REASONING_PARSERS: Mapping[str, str] = by_name(
    {
        "think": (
            "deepseek_r1",
            "deepseek_v3",
            "deepseek_v31",
            "ernie45",
            "glm45",
            "glm47_flash",
            "glm4_moe",
            "hermes",
            "holo2",
            "iquest_coder_v1",
            "kimi_k2",
            "minimax_m2",
            "minimax_m2_append_think",
            "mixed_think_tool_handoff",
            "nemotron3_nano",
            "nemotron_v3",
            "olmo3",
            "qwen3",
            "qwen3_5",
            "qwen3_coder",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "step3",
            "step3p5",
            "step_35",
        ),
        "seed": ("seed_oss",),
        "longcat": ("longcat_flash_lite",),
        "granite": (),
        "mistral": (),
        "cohere": ("cohere_command", "cohere_command3"),
        "gemma4": (),
        "solar_open": (),
        "xtml": ("kimi_k3",),
        "harmony": ("gpt_oss", "openai", "openai_gptoss"),
    }
)
