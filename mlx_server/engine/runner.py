"""One scheduler step on the device for the loaded model: prefill a chunk, or decode the batch."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from mlx_server.engine.batch import RowBatch
from mlx_server.engine.completion import Completion
from mlx_server.engine.kv_caches import KVCaches
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prefill import Prefill
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.prompt import PreparedPrompt, prepare
from mlx_server.engine.sampling import SamplerRow, make_row
from mlx_server.engine.sequence import Delta, Progress, Sequence, Started
from mlx_server.errors import InvalidRequest


@dataclass(slots=True, eq=False)
class _Row:
    sequence: Sequence
    prompt: PreparedPrompt
    completion: Completion


class Runner:
    """Owns the KV state of every sequence of one model. All of it runs on the MLX thread."""

    def __init__(
        self, loaded: LoadedModel, *, prefill_step_size: int, prefix_cache_bytes: int
    ) -> None:
        self.loaded = loaded
        self.prefix_cache = PrefixCache(prefix_cache_bytes)
        self._prefill_step_size = prefill_step_size
        self._batch = RowBatch(loaded.language_model)
        self._prefill: Prefill | None = None
        self._rows: dict[int, _Row] = {}

    def prepare(self, sequence: Sequence) -> None:
        """Build the prompt of a waiting sequence; raises InvalidRequest if it cannot be served."""
        biased = sequence.request.sampling.logit_bias
        if any(token_id >= self.loaded.vocab_size for token_id in biased):
            raise InvalidRequest(
                f"Token ids of this model go up to {self.loaded.vocab_size - 1}.",
                param="logit_bias",
            )
        sequence.prompt = prepare(self.loaded, sequence.request.prompt, sequence.images)

    def prefill(self, sequence: Sequence) -> Progress | Started:
        """Run the next chunk of the prompt. `Started` means that the sequence decodes from now on.

        Raises InvalidRequest if the prompt has not been built yet and cannot be.
        """
        if self._prefill is None:
            self._prefill = self._begin(sequence)
        prefill = self._prefill
        if not prefill.is_done:
            prefill.step()
        if not prefill.is_done:
            return Progress("prefill", prefill.num_done, len(prefill.prompt))
        self._batch.join(sequence.uid, prefill.batch, self._sampler_row(sequence, prefill.prompt))
        self._prefill = None
        self._rows[sequence.uid] = self._make_row(sequence, prefill.prompt)
        return Started(
            model=self.loaded.id,
            num_prompt_tokens=len(prefill.prompt),
            num_cached_tokens=prefill.num_cached_tokens,
            tool_format=self.loaded.tool_format,
            prompt_text=prefill.prompt.text if sequence.request.echo else None,
        )

    def decode(self) -> list[tuple[Sequence, Delta]]:
        """One token for every running sequence; those that end leave their KV state for others."""
        answers = []
        for token in self._batch.decode():
            row = self._rows[token.uid]
            delta = row.completion.add(token)
            if delta.finish_reason is not None:
                self._retire(token.uid)
            answers.append((row.sequence, delta))
        return answers

    def cut(self, sequence: Sequence) -> Delta:
        """End a running sequence now; its answer is what it has so far."""
        delta = self._rows[sequence.uid].completion.cut()
        self._retire(sequence.uid)
        return delta

    def drop(self, sequence: Sequence) -> None:
        """Nobody waits for the sequence any more.

        What it has computed stays in the prefix cache.
        """
        if self._prefill is not None and self._prefill.uid == sequence.uid:
            prefill, self._prefill = self._prefill, None
            self.prefix_cache.insert(prefill.prompt.keys[: prefill.num_done], prefill.caches)
        elif sequence.uid in self._rows:
            self._retire(sequence.uid)

    def reset(self) -> None:
        """Forget all sequences and all KV state: after a failure none of it can be trusted."""
        self._batch = RowBatch(self.loaded.language_model)
        self._prefill = None
        self._rows.clear()
        self.prefix_cache.clear()
        mx.clear_cache()

    def _begin(self, sequence: Sequence) -> Prefill:
        if sequence.prompt is None:
            self.prepare(sequence)
        return Prefill(
            self.loaded,
            sequence.uid,
            sequence.prompt,
            self.prefix_cache,
            step_size=self._prefill_step_size,
        )

    def _sampler_row(self, sequence: Sequence, prompt: PreparedPrompt) -> SamplerRow:
        return make_row(
            sequence.request.sampling,
            self.loaded.defaults,
            seed=sequence.seed,
            prompt_ids=prompt.token_ids,
            vocab_size=self.loaded.vocab_size,
            top_logprobs=sequence.request.top_logprobs,
        )

    def _make_row(self, sequence: Sequence, prompt: PreparedPrompt) -> _Row:
        room = self.loaded.context_length - len(prompt)
        limit = sequence.request.max_tokens
        completion = Completion(
            self.loaded,
            prompt.token_ids,
            index=sequence.index,
            max_tokens=room if limit is None else min(limit, room),
            stop=sequence.request.stop,
        )
        return _Row(sequence, prompt, completion)

    def _retire(self, uid: int) -> None:
        row = self._rows.pop(uid)
        caches: KVCaches = self._batch.release(uid)
        new_keys = np.array(row.completion.token_ids, dtype=np.int64)
        self.prefix_cache.insert(np.concatenate([row.prompt.keys, new_keys]), caches)
