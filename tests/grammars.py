"""Grammars as a model would be held to them: which texts they let through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import llguidance.hf
from llguidance import LLMatcher
from transformers import AddedToken, PreTrainedTokenizerFast

from mlx_server.parsers.lark import LarkGrammar
from mlx_server.parsers.tools import TOOL_FORMATS
from tests.scripted import make_tokenizer


@cache
def vocabulary(added: tuple[str, ...] = ()) -> tuple[PreTrainedTokenizerFast, Any]:
    """A tokenizer of bytes that takes each of `added` as one token, and llguidance's view of it."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(text, special=True, normalized=False) for text in added])
    return tokenizer, llguidance.hf.from_tokenizer(tokenizer)


def added_tokens(tokenizer: PreTrainedTokenizerFast) -> Mapping[str, int]:
    return {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}


def accepts(lark: str, text: str, added: tuple[str, ...] = ()) -> bool:
    """Whether the whole text is one that the grammar stands for."""
    tokenizer, view = vocabulary(added)
    matcher = LLMatcher(view, LLMatcher.grammar_from_lark(lark))
    assert not matcher.get_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False)
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def calls_grammar(
    tool_format: str,
    tools: Sequence[Mapping[str, Any]],
    *,
    is_parallel: bool = True,
    added: tuple[str, ...] = (),
) -> str:
    rule = TOOL_FORMATS[tool_format].calls_rule
    assert rule is not None
    grammar = LarkGrammar(added_tokens(vocabulary(added)[0]))
    return grammar.text(rule(grammar, tools, is_parallel))
