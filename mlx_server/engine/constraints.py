"""What a request holds its answer to: a grammar, and how long it may reason."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakKeyDictionary

from llguidance import LLMatcher

from mlx_server.engine.grammar import GrammarProcessor
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.logits_processors import LogitsProcessor
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.engine.sequence import ChatPrompt, GenerationRequest
from mlx_server.engine.thinking_budget import ThinkingBudget
from mlx_server.errors import UnsupportedParameter
from mlx_server.parsers.answer_grammar import answer_grammar
from mlx_server.parsers.reasoning import REASONING_FORMATS


class Constraints:
    """Of the requests to one model, by their prompts."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._matchers: WeakKeyDictionary[PreparedPrompt, LLMatcher] = WeakKeyDictionary()

    def prepare(self, request: GenerationRequest, prompt: PreparedPrompt) -> None:
        """Raises InvalidRequest for what cannot be enforced."""
        loaded = self._loaded
        if request.thinking_budget is not None and loaded.reasoning_format is None:
            raise UnsupportedParameter(
                "This model does not tell its reasoning apart, so it can have no budget.",
                param="thinking_budget",
            )
        is_chat = isinstance(request.prompt, ChatPrompt)
        lark = answer_grammar(
            request,
            loaded.vocabulary.added_tokens,
            tool_format=loaded.tool_format,
            reasoning_format=loaded.reasoning_format if is_chat else None,
            is_reasoning=self._loaded.opens_reasoning(prompt.text),
        )
        if lark is not None:
            self._matchers[prompt] = loaded.vocabulary.matcher(lark)

    def processors(
        self, request: GenerationRequest, prompt: PreparedPrompt
    ) -> Iterator[LogitsProcessor]:
        """For one row, in the order in which they must come behind all others."""
        if (matcher := self._matchers.get(prompt)) is not None:
            yield GrammarProcessor(matcher.deep_copy(), self._loaded.stop_token_ids)
        if request.thinking_budget is not None:
            yield self._budget(request.thinking_budget, prompt)

    def _budget(self, max_tokens: int, prompt: PreparedPrompt) -> ThinkingBudget:
        loaded = self._loaded
        assert loaded.reasoning_format is not None
        form = REASONING_FORMATS[loaded.reasoning_format]
        encode = loaded.tokenizer.backend_tokenizer.encode
        return ThinkingBudget(
            max_tokens,
            starts=form.starts,
            ends=form.ends,
            end_ids=encode(form.ends[0], add_special_tokens=False).ids,
            is_reasoning=self._loaded.opens_reasoning(prompt.text),
            token_bytes=loaded.token_text.token_bytes,
        )
