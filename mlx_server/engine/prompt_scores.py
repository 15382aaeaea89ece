"""How likely a prompt's own tokens are, taken from the logits of its pieces as they run."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.logprobs import PendingLogprobs, token_logprob
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.engine.sequence import PromptLogprobs, TokenLogprob

# The logits of so many tokens are in memory at a time, and of so many also what is made of them.
SCORED_PIECE = 48
SCORED_ROWS = 8


class PromptScores:
    """The language model, which keeps the logits of every token of its last call until `read`."""

    def __init__(self, loaded: LoadedModel, prompt: PreparedPrompt) -> None:
        self._loaded = loaded
        self._prompt = prompt
        self._logits: mx.array | None = None
        self._entries: list[TokenLogprob] = []
        self.is_broken = False

    def __call__(self, inputs: mx.array, **kwargs: Any) -> Any:
        # some families would compute those of the last token alone
        kwargs["logits_to_keep"] = inputs.shape[1]
        output = self._loaded.language_model(inputs, **kwargs)
        self._logits = getattr(output, "logits", output)[0]
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loaded.language_model, name)

    def read(self) -> None:
        """Take the logits: those of a token say how likely the next one is."""
        logits, self._logits = self._logits, None
        assert logits is not None
        mx.eval(logits)
        for start in range(0, logits.shape[0], SCORED_ROWS):
            self._read_rows(logits[start : start + SCORED_ROWS].astype(mx.float32))

    def _read_rows(self, logits: mx.array) -> None:
        num_rows, num_known = logits.shape[0], 1 + len(self._entries)
        token_ids = self._prompt.token_ids[num_known : num_known + num_rows]
        wanted = (self._prompt.top_logprobs,) * num_rows
        pending = PendingLogprobs.capture(logits, mx.array(token_ids), wanted)
        assert pending is not None
        for token_id, logprobs in zip(token_ids, pending.read(), strict=True):
            assert logprobs is not None
            self.is_broken |= math.isnan(logprobs.chosen)
            self._entries.append(token_logprob(self._loaded.token_text, token_id, logprobs))

    def all(self) -> PromptLogprobs:
        """To be called when all tokens but the last have run."""
        first = self._loaded.token_text.token_bytes(self._prompt.token_ids[0])
        return PromptLogprobs(first, tuple(self._entries))
