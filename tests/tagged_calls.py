"""The same calls in every tool format that is written in tags."""

from __future__ import annotations

from typing import Any

from mlx_server.parsers.tools.tagged_formats import FORMATS

DSML = "｜DSML｜"
NS = "]<]minimax[>["

TRIP: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "plan-trip",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "by_train": {"type": "boolean"},
                "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}},
            },
            "required": ["city"],
            "$defs": {
                "Stop": {
                    "type": "object",
                    "properties": {"name": {"type": "string"}, "nights": {"type": "integer"}},
                    "required": ["name"],
                    "additionalProperties": False,
                }
            },
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = (TRIP, NOW)

NAMES = sorted(FORMATS)
ARGUMENTS = {
    "city": "New York",
    "days": 3,
    "by_train": True,
    "stops": [{"name": "a, b}", "nights": 2}, {"name": "c"}],
}

INVOKE = """\
<{block}>
<{p}invoke name="plan-trip">
<{p}parameter name="city"{s}>New York</{p}parameter>
<{p}parameter name="days"{j}>3</{p}parameter>
<{p}parameter name="by_train"{j}>true</{p}parameter>
<{p}parameter name="stops"{j}>[{{"name": "a, b}}", "nights": 2}}, {{"name": "c"}}]</{p}parameter>
</{p}invoke>
</{block}>"""
KEYS = """\
<{p}tool_call>plan-trip
<{p}arg_key>city</{p}arg_key>
<{p}arg_value>New York</{p}arg_value>
<{p}arg_key>days</{p}arg_key>
<{p}arg_value>3</{p}arg_value>
<{p}arg_key>by_train</{p}arg_key>
<{p}arg_value>true</{p}arg_value>
<{p}arg_key>stops</{p}arg_key>
<{p}arg_value>[{{"name": "a, b}}", "nights": 2}}, {{"name": "c"}}]</{p}arg_value>
</{p}tool_call>"""
TYPED = {"s": ' string="true"', "j": ' string="false"'}
BARE = {"s": "", "j": ""}

CALLS = {
    "qwen3_coder": """\
<tool_call>
<function=plan-trip>
<parameter=city>
New York
</parameter>
<parameter=days>
3
</parameter>
<parameter=by_train>
true
</parameter>
<parameter=stops>
[{"name": "a, b}", "nights": 2}, {"name": "c"}]
</parameter>
</function>
</tool_call>""",
    "glm4_moe": KEYS.format(p=""),
    "longcat": KEYS.format(p="longcat_"),
    "minimax_m2": INVOKE.format(block="minimax:tool_call", p="", **BARE),
    "atem": INVOKE.format(block="atem:function_calls", p="atem:", **BARE),
    "deepseek_v32": INVOKE.format(block=f"{DSML}function_calls", p=DSML, **TYPED),
    "deepseek_v4": INVOKE.format(block=f"{DSML}tool_calls", p=DSML, **TYPED),
    "minimax_m3": f"""\
{NS}<tool_call>
{NS}<invoke name="plan-trip">
{NS}<city>New York{NS}</city>
{NS}<days>3{NS}</days>
{NS}<by_train>true{NS}</by_train>
{NS}<stops>[{{"name": "a, b}}", "nights": 2}}, {{"name": "c"}}]{NS}</stops>
{NS}</invoke>
{NS}</tool_call>""",
    "minicpm5": """\
<function name="plan-trip">
<param name="city"><![CDATA[New York]]></param>
<param name="days"><![CDATA[3]]></param>
<param name="by_train"><![CDATA[true]]></param>
<param name="stops"><![CDATA[[{"name": "a, b}", "nights": 2}, {"name": "c"}]]]></param>
</function>""",
    "functiongemma": (
        "<start_function_call>call:plan-trip{city:<escape>New York<escape>,days:3,by_train:true,"
        "stops:[{name:<escape>a, b}<escape>,nights:2},{name:<escape>c<escape>}]}"
        "<end_function_call>"
    ),
    "gemma4": (
        '<|tool_call>call:plan-trip{city:<|"|>New York<|"|>,days:3,by_train:true,'
        'stops:[{name:<|"|>a, b}<|"|>,nights:2},{name:<|"|>c<|"|>}]}<tool_call|>'
    ),
}

EMPTY = {
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "glm4_moe": "<tool_call>now\n</tool_call>",
    "longcat": "<longcat_tool_call>now\n</longcat_tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
    "atem": (
        '<atem:function_calls>\n<atem:invoke name="now">\n</atem:invoke>\n</atem:function_calls>'
    ),
    "deepseek_v32": (
        f'<{DSML}function_calls>\n<{DSML}invoke name="now">\n</{DSML}invoke>\n'
        f"</{DSML}function_calls>"
    ),
    "deepseek_v4": (
        f'<{DSML}tool_calls>\n<{DSML}invoke name="now">\n</{DSML}invoke>\n</{DSML}tool_calls>'
    ),
    "minimax_m3": (f'{NS}<tool_call>\n{NS}<invoke name="now">\n{NS}</invoke>\n{NS}</tool_call>'),
    "minicpm5": '<function name="now">\n</function>',
    "functiongemma": "<start_function_call>call:now{}<end_function_call>",
    "gemma4": "<|tool_call>call:now{}<tool_call|>",
}


def in_one_block(name: str) -> str:
    """Both calls as a model of the format writes them one after the other."""
    form = FORMATS[name]
    first, second = CALLS[name], EMPTY[name]
    if name not in SHARED:
        return f"{first}\n{second}"
    inside = second.removeprefix(f"{form.tool_call_start}\n")
    return first.removesuffix(form.tool_call_end) + inside


SHARED = frozenset({"minimax_m2", "minimax_m3", "atem", "deepseek_v32", "deepseek_v4"})
