"""Which answers a request lets through, whatever the model."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ResponseFormat,
    TextPart,
    ToolChoice,
)
from mlx_server.parsers.answer_grammar import answer_grammar
from tests.grammars import accepts, added_tokens, vocabulary

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>")
NUMBER: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
STRICT: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": NUMBER, "strict": True},
}
LOOSE = {"type": "function", "function": {"name": "f", "parameters": NUMBER}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def grammar_of(
    added: tuple[str, ...] = (),
    *,
    tools: tuple[Any, ...] = (),
    reasoning_format: str | None = None,
    is_reasoning: bool = False,
    tool_format: str = "json_tools",
    **fields: Any,
) -> str | None:
    prompt = ChatPrompt((ChatMessage("user", (TextPart("hi"),)),), tools)
    return answer_grammar(
        GenerationRequest("r", None, prompt, **fields),
        added_tokens(vocabulary(added)[0]),
        tool_format=tool_format,
        reasoning_format=reasoning_format,
        is_reasoning=is_reasoning,
    )


def lets(text: str, added: tuple[str, ...] = (), **fields: Any) -> bool:
    lark = grammar_of(added, **fields)
    assert lark is not None
    return accepts(lark, text, added)


def test_an_answer_of_which_nothing_is_asked_is_free() -> None:
    assert grammar_of() is None
    assert grammar_of(tools=(LOOSE,)) is None


@pytest.mark.parametrize("added", [(), TAGS])
def test_the_format_begins_behind_the_reasoning(added: tuple[str, ...]) -> None:
    wanted = {"response_format": ResponseFormat("json_schema", NUMBER), "reasoning_format": "think"}
    assert lets('<think>{"b": hm</think>\n\n{"a": 1}', added, **wanted)
    assert lets('{"a": 1}', added, **wanted)
    assert not lets('hm {"a": 1}', added, **wanted)
    assert lets('so</think>{"a": 1}', added, is_reasoning=True, **wanted)
    assert not lets('{"a": 1}', added, is_reasoning=True, **wanted)


def test_white_space_in_json_is_bounded() -> None:
    wanted = {"response_format": ResponseFormat("json_schema", NUMBER)}
    assert lets('{\n  "a": 1\n}', **wanted)
    assert not lets('{"a": ' + " " * 100 + "1}", **wanted)


@pytest.mark.parametrize("added", [(), TAGS])
def test_a_required_call_comes_behind_the_reasoning(added: tuple[str, ...]) -> None:
    wanted = {
        "tools": (LOOSE,),
        "tool_choice": ToolChoice("required"),
        "reasoning_format": "think",
        "is_reasoning": True,
    }
    assert lets(f"let me see</think>\n\n{CALL}", added, **wanted)
    assert not lets("let me see</think>\n\nno", added, **wanted)


@pytest.mark.parametrize("added", [(), TAGS])
@pytest.mark.parametrize(("is_parallel", "num_calls"), [(True, 2), (False, 1)])
def test_a_free_answer_may_hold_calls_that_fit_a_strict_schema(
    added: tuple[str, ...], is_parallel: bool, num_calls: int
) -> None:
    wanted = {"tools": (STRICT,), "tool_choice": ToolChoice(is_parallel=is_parallel)}
    assert lets("just text < and so on", added, **wanted)
    assert lets(f"I call. {CALL}", added, **wanted)
    assert not lets(f"I call. {CALL.replace('1', 'true')}", added, **wanted)
    assert lets(f"{CALL}\n{CALL}", added, **wanted) == (num_calls == 2)


@pytest.mark.parametrize("added", [(), HARMONY])
def test_harmony_answers_in_its_final_channel_or_calls_in_commentary(
    added: tuple[str, ...],
) -> None:
    wanted = {"tool_format": "harmony", "reasoning_format": "harmony"}
    json_wanted = {**wanted, "response_format": ResponseFormat("json_schema", NUMBER)}
    analysis = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    final = '<|channel|>final<|message|>{"a": 1}'
    assert lets(final, added, **json_wanted)
    assert lets(analysis + final, added, **json_wanted)
    assert not lets('{"a": 1}', added, **json_wanted)
    call_wanted = {**wanted, "tools": (LOOSE,), "tool_choice": ToolChoice("required", None, False)}
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
    assert lets(analysis + call, added, **call_wanted)
    assert not lets(analysis + final, added, **call_wanted)
