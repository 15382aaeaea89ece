"""What a grammar of tool calls lets through is what the parser of the same format reads."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.parsers.harmony_marks import MARKS
from mlx_server.parsers.lark import LarkGrammar
from tests.grammars import accepts, added_tokens, calls_grammar, vocabulary
from tests.parser_cuts import read

ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "note": "é <b>"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TAGS = ("<tool_call>", "</tool_call>")


@pytest.mark.parametrize("added", [(), TAGS])
def test_json_calls_are_let_through_one_or_many(added: tuple[str, ...]) -> None:
    many = calls_grammar("json_tools", [ADD, NOW], added=added)
    assert accepts(many, CALL, added)
    assert accepts(many, f"{CALL}\n{OTHER}", added)
    single = calls_grammar("json_tools", [ADD, NOW], is_parallel=False, added=added)
    assert accepts(single, OTHER, added)
    assert not accepts(single, f"{CALL}\n{OTHER}", added)


@pytest.mark.parametrize(
    "wrong",
    [
        CALL.replace("1", '"one"'),
        CALL.replace("add", "subtract"),
        OTHER.replace("now", "add"),
        CALL[:-3],
        f"Sure. {CALL}",
        "no",
    ],
)
def test_what_is_no_call_of_these_tools_is_not(wrong: str) -> None:
    assert not accepts(calls_grammar("json_tools", [ADD, NOW]), wrong)


@pytest.mark.parametrize("added", [(), ("</v>",)])
def test_any_text_goes_up_to_its_marker(added: tuple[str, ...]) -> None:
    grammar = LarkGrammar(added_tokens(vocabulary(added)[0]))
    lark = grammar.text(f"{grammar.literal('<v>')} {grammar.text_up_to('</v>')}")
    assert accepts(lark, '<v>a </b>\n"</v>', added)
    assert not accepts(lark, "<v>a", added)
    assert not accepts(lark, "<v>a</v>b", added)


@pytest.mark.parametrize("added", [(), MARKS])
def test_calls_of_harmony_are_let_through_one_or_many(added: tuple[str, ...]) -> None:
    head = "<|channel|>commentary to=functions."
    call = f'{head}add <|constrain|>json<|message|>{{"a": 1}}<|call|>'
    other = f"{head}now <|constrain|>json<|message|>{{}}<|call|>"
    many = calls_grammar("harmony", [ADD, NOW], added=added)
    assert accepts(many, call, added)
    assert accepts(many, f"{call}<|start|>assistant{other}", added)
    assert not accepts(many, call.replace("1", '"one"'), added)
    single = calls_grammar("harmony", [ADD, NOW], is_parallel=False, added=added)
    assert accepts(single, other, added)
    assert not accepts(single, f"{call}<|start|>assistant{other}", added)
    assert read([call], [ADD, NOW], "harmony", "harmony").calls == (("add", '{"a": 1}'),)
