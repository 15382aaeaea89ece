"""The growing answer of one sequence: tokens in, text that may be sent out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq

from mlx_server.engine.detokenizer import Detokenizer
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.logprobs import token_logprob
from mlx_server.engine.sampling import RowToken
from mlx_server.engine.sequence import Delta, FinishReason, TokenLogprob
from mlx_server.engine.stop import StopMatcher
from mlx_server.engine.stop_scope import StopBehindReasoning
from mlx_server.parsers.segments import Segmenter


class Completion:
    """Ends at a stop token, a stop string or `max_tokens`, whichever comes first.

    Stop strings end what is no reasoning, if there is a `segmenter` to tell the two apart. Special
    tokens that `marks` are made of have a text.
    The logprobs of a token wait until its text may go out, so that none belongs to a stop string.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        prompt_ids: Seq[int],
        *,
        index: int,
        max_tokens: int,
        stop: tuple[str, ...],
        segmenter: Segmenter | None = None,
        marks: tuple[str, ...] = (),
    ) -> None:
        self._loaded = loaded
        self._index = index
        self._max_tokens = max_tokens
        hidden_ids = loaded.token_text.hidden_ids(marks) if marks else None
        self._detokenizer = Detokenizer(loaded.tokenizer, prompt_ids, hidden_ids)
        self._stop = StopMatcher(stop)
        if stop and segmenter is not None:
            self._stop = StopBehindReasoning(stop, segmenter)
        self._num_chars = 0
        self._num_sent = 0
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()
        self.token_ids: list[int] = []

    def end_with_next(self) -> None:
        """The next token shall be the last."""
        self._max_tokens = len(self.token_ids) + 1

    def add(self, token: RowToken) -> Delta:
        """Take the next token; the Delta has a finish_reason if it was the last."""
        self.token_ids.append(token.token_id)
        if token.token_id in self._loaded.stop_token_ids:
            return self._finish(FinishReason.STOP)
        if token.logprobs is not None:
            entry = token_logprob(self._loaded.token_text, token.token_id, token.logprobs)
            self._waiting.append((self._num_chars, entry))
        text = self._detokenizer.feed(token.token_id)
        self._num_chars += len(text)
        safe = self._stop.feed(text)
        if self._stop.is_stopped:
            return self._delta(safe, FinishReason.STOP)
        if len(self.token_ids) >= self._max_tokens:
            return self._finish(FinishReason.LENGTH, safe)
        return self._delta(safe)

    def cut(self) -> Delta:
        """End now, as if this were all that was asked for."""
        return self._finish(FinishReason.LENGTH)

    def _finish(self, reason: FinishReason, safe: str = "") -> Delta:
        safe += self._stop.feed(self._detokenizer.finish())
        if self._stop.is_stopped:
            return self._delta(safe, FinishReason.STOP)
        return self._delta(safe + self._stop.finish(), reason, all_logprobs=True)

    def _delta(
        self, text: str, reason: FinishReason | None = None, *, all_logprobs: bool = False
    ) -> Delta:
        self._num_sent += len(text)
        entries = []
        while self._waiting and (all_logprobs or self._waiting[0][0] < self._num_sent):
            entries.append(self._waiting.popleft()[1])
        return Delta(
            index=self._index,
            text=text,
            num_completion_tokens=len(self.token_ids),
            logprobs=tuple(entries),
            finish_reason=reason,
            stop=self._stop.matched,
        )
