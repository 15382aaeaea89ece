"""What models write in the tool formats made of JSON or Python, and the calls that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.parser_cuts import tool

TRIP: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "plan-trip",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "by_rail": {"type": "boolean"},
                "stops": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
TOOLS = (TRIP, tool("now"))
ARGUMENTS: Mapping[str, Any] = {"city": "Åre", "days": 3, "by_rail": True, "stops": ["a", "b]"]}
JSON = '{"city": "Åre", "days": 3, "by_rail": true, "stops": ["a", "b]"]}'
PYTHON = 'plan_trip(city="Åre", days=3, by_rail=True, stops=["a", "b]"])'

KIMI_CALL = (
    f"<|tool_call_begin|>functions.plan-trip:0<|tool_call_argument_begin|>{JSON}<|tool_call_end|>"
)
KIMI_NOW = "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def deepseek_v3_call(name: str, arguments: str) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"
        "<｜tool▁call▁end｜>"
    )


def deepseek_v31_call(name: str, arguments: str) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"


def solar_call(call_id: str, name: str, arguments: str) -> str:
    return (
        f"<|tool_call:begin|>{call_id}<|tool_call:name|>{name}"
        f"<|tool_call:args|>{arguments}<|tool_call:end|>"
    )


USUAL = f'{{"name": "plan-trip", "arguments": {JSON}}}'
USUAL_NOW = '{"name": "now", "arguments": {}}'
LLAMA = f'{{"name": "plan-trip", "parameters": {JSON}}}'
LLAMA_NOW = '{"name": "now", "parameters": {}}'
COHERE = f'{{"tool_call_id": "0", "tool_name": "plan-trip", "parameters": {JSON}}}'
COHERE_NOW = '{"tool_call_id": "1", "tool_name": "now", "parameters": {}}'

# In each form: one call of `plan-trip`, and the same with one of `now` behind it.
FORMS: Mapping[str, tuple[str, str, str]] = {
    "mistral list": ("mistral", f"[TOOL_CALLS][{USUAL}]", f"[TOOL_CALLS] [{USUAL}, {USUAL_NOW}]"),
    "mistral args": (
        "mistral",
        f"[TOOL_CALLS]plan-trip[ARGS]{JSON}",
        f"[TOOL_CALLS]plan-trip[ARGS]{JSON}[TOOL_CALLS]now[ARGS]{{}}",
    ),
    "mistral id": (
        "mistral",
        f"[TOOL_CALLS]plan-trip[CALL_ID]a1b2c3d4e[ARGS]{JSON}",
        f"[TOOL_CALLS]plan-trip[CALL_ID]a1b2c3d4e[ARGS]{JSON}[TOOL_CALLS]now[ARGS]{{}}",
    ),
    "llama3": (
        "llama3",
        f"<|python_tag|>{LLAMA}",
        f"<|python_tag|>{LLAMA}; {LLAMA_NOW}",
    ),
    "llama3 bare": ("llama3", LLAMA, f"{LLAMA}; {LLAMA_NOW}"),
    "granite": ("granite", f"<|tool_call|>[{USUAL}]", f"<|tool_call|>[{USUAL}, {USUAL_NOW}]"),
    "cohere": (
        "cohere",
        f"<|START_ACTION|>[\n    {COHERE}\n]<|END_ACTION|>",
        f"<|START_ACTION|>[\n    {COHERE},\n    {COHERE_NOW}\n]<|END_ACTION|>",
    ),
    "xlam bare": ("xlam", f"[{USUAL}]", f"[{USUAL}, {USUAL_NOW}]"),
    "deepseek_v3": (
        "deepseek_v3",
        deepseek_v3_call("plan-trip", JSON).join(DEEPSEEK),
        f"{deepseek_v3_call('plan-trip', JSON)}\n{deepseek_v3_call('now', '{}')}".join(DEEPSEEK),
    ),
    "deepseek_v31": (
        "deepseek_v31",
        deepseek_v31_call("plan-trip", JSON).join(DEEPSEEK),
        f"{deepseek_v31_call('plan-trip', JSON)}{deepseek_v31_call('now', '{}')}".join(DEEPSEEK),
    ),
    "kimi_k2": (
        "kimi_k2",
        f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>",
        f"<|tool_calls_section_begin|>{KIMI_CALL}{KIMI_NOW}<|tool_calls_section_end|>",
    ),
    "solar_open": (
        "solar_open",
        solar_call("x7_-k", "plan-trip", JSON),
        solar_call("x7_-k", "plan-trip", JSON) + solar_call("x8", "now", "{}"),
    ),
    "pythonic": (
        "pythonic",
        f"<|tool_call_start|>[{PYTHON}]<|tool_call_end|>",
        f"<|tool_call_start|>[{PYTHON}, now()]<|tool_call_end|>",
    ),
    "pythonic bare": ("pythonic", f"[{PYTHON}]", f"[{PYTHON}, now()]"),
    "llama4_pythonic": (
        "llama4_pythonic",
        f"<|python_start|>[{PYTHON}]<|python_end|>",
        f"<|python_start|>[{PYTHON}, now()]<|python_end|>",
    ),
    "llama4 bare": ("llama4_pythonic", f"[{PYTHON}]", f"[{PYTHON}, now()]"),
    "gemma_code": (
        "gemma_code",
        f"```tool_code\n{PYTHON}\n```",
        f"```tool_code\n{PYTHON}\nnow()\n```",
    ),
}
# Read as well, and never asked for by a grammar.
ODD_FORMS: Mapping[str, tuple[str, str, str]] = {
    "mistral name": (
        "mistral",
        f"[TOOL_CALLS]plan-trip{JSON}",
        f"[TOOL_CALLS]plan-trip{JSON}now[ARGS]{{}}",
    ),
    "mistral object": ("mistral", f"[TOOL_CALLS]{USUAL}", f"[TOOL_CALLS]{USUAL}\n{USUAL_NOW}"),
    "llama3 bare space": ("llama3", f"\n{LLAMA}", f"{LLAMA}\n{LLAMA_NOW}"),
    "llama3 commas": ("llama3", f"<|python_tag|> {LLAMA}", f"<|python_tag|>{LLAMA}, {LLAMA_NOW}"),
    "granite unclosed": ("granite", f"<tool_call>[{USUAL}]", f"<tool_call>[{USUAL}, {USUAL_NOW}]"),
    "granite closed": (
        "granite",
        f"<tool_call>{USUAL}</tool_call>",
        f"<tool_call>[{USUAL}, {USUAL_NOW}]</tool_call>",
    ),
    "xlam fence": (
        "xlam",
        f"```json\n[{USUAL}]\n```",
        f"```json\n[\n{USUAL},\n{USUAL_NOW}\n]\n```",
    ),
    "kimi singular": (
        "kimi_k2",
        f"<|tool_call_section_begin|>{KIMI_CALL}<|tool_call_section_end|>",
        f"<|tool_call_section_begin|>{KIMI_CALL}\n{KIMI_NOW}<|tool_calls_section_end|>",
    ),
    "pythonic tag": (
        "pythonic",
        f"<|python_tag|>[{PYTHON}]",
        f"<|python_tag|>[{PYTHON},\n now()]",
    ),
    "brackets": (
        "json_tools",
        f"[Calling tool: plan-trip({JSON})]",
        f"[Calling tool: plan-trip({JSON})]\n[Calling tool: now({{}})]",
    ),
}
ALL_FORMS = {**FORMS, **ODD_FORMS}
