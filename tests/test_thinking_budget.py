"""Reasoning ends when its budget is used up, and not before."""

from __future__ import annotations

import mlx.core as mx

from mlx_server.engine.grammar import GrammarProcessor
from mlx_server.engine.thinking_budget import ThinkingBudget
from tests.grammars import vocabulary

TEXTS = (b"<think>", b"</th", b"ink>", b"word", b"\n")
END = [1, 2]


def written(max_tokens: int, wants: list[int], *, is_reasoning: bool = True) -> list[int]:
    """The tokens of a model that would write `wants`."""
    budget = ThinkingBudget(
        max_tokens,
        starts=["<think>"],
        ends=["</think>"],
        end_ids=END,
        is_reasoning=is_reasoning,
        token_bytes=lambda token_id: TEXTS[token_id],
    )
    tokens: list[int] = []
    for want in wants:
        last = mx.array(tokens[-1]) if tokens else None
        logits = budget(mx.where(mx.arange(5) == want, 9.0, 0.0), last)
        tokens.append(int(mx.argmax(logits).item()))  # type: ignore[arg-type]
    return tokens


def test_the_end_is_written_after_so_many_tokens_and_the_answer_goes_on() -> None:
    assert written(2, [3, 3, 3, 3, 3, 3]) == [3, 3, *END, 3, 3]


def test_no_token_of_reasoning_is_a_budget_too() -> None:
    assert written(0, [3, 3, 3]) == [*END, 3]


def test_who_ends_in_time_is_left_alone() -> None:
    assert written(5, [3, 1, 2, 3, 3, 3, 3, 3]) == [3, 1, 2, 3, 3, 3, 3, 3]


def test_the_budget_counts_from_where_the_model_opens_the_reasoning() -> None:
    assert written(1, [4, 0, 3, 3, 3], is_reasoning=False) == [4, 0, 3, *END]
    assert written(1, [3, 3, 3, 3], is_reasoning=False) == [3, 3, 3, 3]


def test_a_row_that_has_left_its_grammar_gets_no_numbers() -> None:
    from llguidance import LLMatcher

    tokenizer, view = vocabulary()
    a, b = tokenizer.encode("ab", add_special_tokens=False)
    matcher = LLMatcher(view, LLMatcher.grammar_from_lark('start: "aa"'))
    processor = GrammarProcessor(matcher, [2])
    logits = mx.zeros(300)
    first = processor(logits, None)
    assert mx.argmax(first).item() == a
    assert first[b].item() == -mx.inf
    assert first[299].item() == -mx.inf
    assert mx.all(mx.isnan(processor(logits, mx.array(b)))).item()
