"""One scheduler step on the device for the loaded model: prefill a chunk, or decode the batch."""

from __future__ import annotations

from collections.abc import Container
from weakref import WeakKeyDictionary

import mlx.core as mx

from mlx_server.engine.admission import Admission
from mlx_server.engine.batch import RowBatch, RowStart
from mlx_server.engine.completion import Completion
from mlx_server.engine.constraints import Constraints
from mlx_server.engine.device import is_cpu
from mlx_server.engine.kv_caches import KVCaches, is_trimmable
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.memory import KVMemory
from mlx_server.engine.prefill import Prefill, with_scores
from mlx_server.engine.prefix_cache import PrefixCache, common_length
from mlx_server.engine.prompt import PreparedPrompt, prepare
from mlx_server.engine.rows import Ended, PrefillResult, Row, SharedStart
from mlx_server.engine.sampler_row import SamplerRow, make_row
from mlx_server.engine.sampling import RowToken
from mlx_server.engine.sequence import (
    ChatPrompt,
    Delta,
    FinishReason,
    Progress,
    Sequence,
    Started,
)
from mlx_server.errors import GenerationFailed, InvalidRequest, ServerError
from mlx_server.parsers.reasoning import make_segmenter
from mlx_server.parsers.segments import Segmenter

# Running this few tokens once more costs less than looking after the KV state that spares it.
MIN_SHARED = 32
# A prompt of which less than this share is new is not kept before its answer is through: the copy
# would cost more than the others that have come with the same new text could gain.
MIN_NEW_SHARE = 1 / 8
NO_NUMBERS = "The model's output is no numbers. Change the prompt."
Answer = tuple[Sequence, Delta | ServerError]


class Runner:
    """Owns the KV state of every sequence of one model. All of it runs on the MLX thread."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        prefill_step_size: int,
        prefix_cache: PrefixCache,
        memory: KVMemory,
    ) -> None:
        self.loaded = loaded
        self.prefix_cache = prefix_cache
        self.memory = memory
        self._admission = Admission(loaded, memory)
        self._constraints = Constraints(loaded)
        self._max_cache_bytes = prefix_cache.max_bytes
        self._prefill_step_size = prefill_step_size
        self._forget_all()

    def _forget_all(self) -> None:
        self._batches: dict[str, RowBatch] = {}
        self._prefills: dict[int, Prefill] = {}
        self._rows: dict[int, Row] = {}
        self._ended = Ended()
        self._begun: list[tuple[Prefill, KVCaches]] = []
        self._shared_starts: WeakKeyDictionary[PreparedPrompt, SharedStart] = WeakKeyDictionary()
        self._num_left: dict[int, int] = {}
        self.memory.clear()
        self._bound_prefix_cache()

    def prepare(self, sequence: Sequence) -> None:
        """Build the prompt of a waiting sequence; raises InvalidRequest if it cannot be served."""
        biased = sequence.request.sampling.logit_bias
        if any(token_id >= self.loaded.vocab_size for token_id in biased):
            raise InvalidRequest(
                f"Token ids of this model go up to {self.loaded.vocab_size - 1}.",
                param="logit_bias",
            )
        request = sequence.request
        prompt = prepare(self.loaded, request.prompt, sequence.images)
        if request.prompt_logprobs:
            prompt = with_scores(self.loaded, prompt, request.top_logprobs or 0)
        self._admission.refuse_hopeless(request, prompt)
        self._constraints.prepare(request, prompt)
        sequence.prompt = prompt
        sequence.picture_bytes = self._admission.hold(prompt)
        self._bound_prefix_cache()

    def reserve(self, sequence: Sequence) -> bool:
        """Set memory aside for prompt and answer; False while others hold it."""
        if self.loaded.takes_one_row and self.memory.num_rows:
            return False
        shared = self._shared_starts.get(sequence.prompt)
        is_promised = self._admission.reserve(sequence, shared)
        if not is_promised and not self.memory.num_rows:
            # nobody's end will make room, and whoever waits behind this one can prefill again
            self._keep_start_of(sequence.prompt)
            is_promised = self._admission.reserve(sequence, shared, is_alone=True)
        if is_promised:
            # what is about to serve this sequence must not leave to make room for it
            self.prefix_cache.use(sequence.prompt.keys, self._variant(sequence))
        self._bound_prefix_cache()
        return is_promised

    def _keep_start_of(self, prompt: PreparedPrompt) -> None:
        """And of no other."""
        for other in [other for other in self._shared_starts if other is not prompt]:
            del self._shared_starts[other]

    def _variant(self, sequence: Sequence) -> str:
        return self.loaded.kv_variant(len(sequence.prompt))

    def _bound_prefix_cache(self) -> None:
        """It gives way to what running sequences were promised."""
        room = min(self._max_cache_bytes, self.memory.room_for_prefix_cache())
        self.prefix_cache.max_bytes = room
        num_entries = len(self.prefix_cache)
        self.prefix_cache.shrink_to(room)
        if len(self.prefix_cache) != num_entries:
            self._num_left.clear()

    def _release(self, uid: int) -> None:
        self.memory.release(uid)
        self._bound_prefix_cache()

    def num_left(self, sequence: Sequence) -> int:
        """Prompt tokens that have still to run, by what the prefix cache holds now."""
        prefill = self._prefills.get(sequence.uid)
        if prefill is not None:
            return len(prefill.prompt) - prefill.num_done
        if sequence.prompt in self._shared_starts:
            return 0
        if sequence.uid not in self._num_left:
            prompt: PreparedPrompt = sequence.prompt
            self._num_left[sequence.uid] = len(prompt) - self._num_cached(prompt)
        return self._num_left[sequence.uid]

    def _num_cached(self, prompt: PreparedPrompt) -> int:
        if prompt.top_logprobs is not None:
            return 0
        return self.prefix_cache.peek(prompt.keys, self.loaded.kv_variant(len(prompt)))

    def is_shared(self, sequence: Sequence, earlier: Sequence) -> bool:
        """Whether `sequence` will find KV state that `earlier` has still to compute."""
        prompt: PreparedPrompt = sequence.prompt
        if prompt.top_logprobs is not None:
            return False
        num_known = len(prompt) - self.num_left(sequence)
        return common_length(prompt.keys, earlier.prompt.keys) >= num_known + MIN_SHARED

    def prefill(self, sequence: Sequence, max_tokens: int | None = None) -> PrefillResult:
        """Run the next chunk of the prompt, of `max_tokens` at most.

        Raises InvalidRequest if the prompt has not been built yet and cannot be. Whatever else it
        raises concerns this sequence alone, until `join`.
        """
        shared = sequence.prompt and self._shared_starts.get(sequence.prompt)
        if shared:
            # one that came later with the same prompt has passed this one
            self._prefills.pop(sequence.uid, None)
            return PrefillResult(self._started(sequence, shared), 0)
        if sequence.uid not in self._prefills:
            self._prefills[sequence.uid] = self._begin(sequence)
        prefill = self._prefills[sequence.uid]
        num_before = prefill.num_done
        is_last = prefill.is_within(max_tokens)
        if not is_last:
            prefill.step(max_tokens)
            is_last = prefill.is_within(1)
        if not is_last:
            progress = Progress("prefill", prefill.num_done, len(prefill.prompt))
            return PrefillResult(progress, prefill.num_done - num_before)
        start = self._batch(prefill.variant).start(prefill.batch)
        if prefill.is_broken or mx.any(mx.isnan(start.logits)).item():
            # of this or of an earlier prompt, kept before anybody saw what comes of it
            self.prefix_cache.forget(prefill.prompt.keys, prefill.variant)
            self._num_left.clear()
            self.forget(sequence)
            raise GenerationFailed(NO_NUMBERS)
        shared = SharedStart(
            start, prefill.num_cached_tokens, sequence.request.n, prefill.prompt_logprobs
        )
        self._shared_starts[prefill.prompt] = shared
        self._admission.share(sequence, shared)
        del self._prefills[sequence.uid]
        if self._is_worth_keeping(prefill, start):
            self._begun.append((prefill, start.fork().caches))
        self._num_left.clear()
        event = self._started(sequence, shared)
        return PrefillResult(event, len(prefill.prompt) - num_before)

    def join(self, sequence: Sequence) -> Answer:
        """Let a sequence whose prompt is through decode with the others; returns its first token.

        `settle` must follow. A sequence that shall have no token ends instead.
        """
        prompt: PreparedPrompt = sequence.prompt
        if sequence.request.max_tokens == 0:
            self.drop(sequence)
            return sequence, Delta(sequence.index, "", 0, finish_reason=FinishReason.LENGTH)
        shared = self._shared_starts[prompt]
        start = shared.start if shared.num_expected == 1 else shared.start.fork()
        self._expect_one_less(prompt)
        row = self._sampler_row(sequence, prompt)
        batch = self._batch(self.loaded.kv_variant(len(prompt)))
        first = batch.join(sequence.uid, start, row)
        self._rows[sequence.uid] = self._make_row(sequence, prompt)
        return self._answer(first)

    def decode(self) -> list[Answer]:
        """One step of the running sequences; `settle` must follow for those that have ended."""
        batches = self._batches.values()
        return [self._answer(token) for batch in batches for token in batch.decode()]

    def _answer(self, token: RowToken) -> Answer:
        row = self._rows[token.uid]
        if token.is_broken:
            self._ended.uids.append(token.uid)
            self._ended.broken.add(token.uid)
            failure = GenerationFailed(NO_NUMBERS)
            return row.sequence, failure
        if self._admission.must_grow(row):
            if not self._admission.grow(row):
                row.completion.end_with_next()
            self._bound_prefix_cache()
        delta = row.completion.add(token)
        if delta.finish_reason is not None:
            self._ended.uids.append(token.uid)
        return row.sequence, delta

    def settle(self) -> None:
        """Take the rows that have ended out of the batch and keep their KV state for others, and
        the prompts of those that have begun.
        """
        begun, self._begun = self._begun, []
        for prefill, caches in begun:
            self._insert(prefill, len(prefill.prompt), caches)
        ended, self._ended = self._ended, Ended()
        if ended.uids:
            self._retire(ended.uids, ended.broken)

    def can_cut(self, sequence: Sequence) -> bool:
        """Whether the sequence runs, or another answer of its request does."""
        has_begun = sequence.prompt is not None and sequence.prompt in self._shared_starts
        return has_begun or sequence.uid in self._rows

    def cut(self, sequence: Sequence) -> Delta:
        """End a sequence now; its answer is what it has so far."""
        if sequence.uid not in self._rows:
            self.drop(sequence)
            return Delta(sequence.index, "", 0, finish_reason=FinishReason.LENGTH)
        delta = self._rows[sequence.uid].completion.cut()
        self._retire([sequence.uid])
        return delta

    def drop(self, sequence: Sequence) -> None:
        """Nobody waits for the sequence any more.

        What it has computed stays in the prefix cache.
        """
        uid = sequence.uid
        if uid in self._rows:
            self._retire([uid])
        elif uid in self._prefills:
            prefill = self._prefills.pop(uid)
            self._insert(prefill, prefill.num_done, prefill.caches)
        elif sequence.prompt is not None:
            self._expect_one_less(sequence.prompt)
        self._num_left.pop(uid, None)
        self._release(uid)

    def forget(self, sequence: Sequence) -> None:
        """Throw away what a prefill that failed has computed."""
        self._prefills.pop(sequence.uid, None)
        self._release(sequence.uid)
        mx.clear_cache()

    def clear_prefix_cache(self) -> None:
        self.prefix_cache.clear()
        self._num_left.clear()

    def reset(self) -> None:
        """Forget all sequences and all KV state in memory: after a failure none of it can be
        trusted. What is on disk was complete before.
        """
        self._forget_all()
        self.prefix_cache.clear()
        mx.clear_cache()

    def _begin(self, sequence: Sequence) -> Prefill:
        if sequence.prompt is None:
            self.prepare(sequence)
        self._num_left.pop(sequence.uid, None)
        return Prefill(
            self.loaded,
            sequence.uid,
            sequence.prompt,
            self.prefix_cache,
            step_size=self._prefill_step_size,
        )

    def _is_worth_keeping(self, prefill: Prefill, start: RowStart) -> bool:
        """Whether sequences that come before this one ends shall find its prompt.

        States that cannot go back were kept at the prompt's checkpoints.
        """
        num_new = len(prefill.prompt) - prefill.num_cached_tokens
        is_much = num_new >= max(MIN_SHARED, MIN_NEW_SHARE * len(prefill.prompt))
        return is_much and is_trimmable(start.caches)

    def _insert(self, prefill: Prefill, num_tokens: int, caches: KVCaches) -> None:
        self.prefix_cache.insert(prefill.prompt.keys[:num_tokens], caches, prefill.variant)
        self._num_left.clear()

    def _started(self, sequence: Sequence, shared: SharedStart) -> Started:
        self.memory.settle(sequence.uid)
        prompt: PreparedPrompt = sequence.prompt
        return Started(
            model=self.loaded.id,
            num_prompt_tokens=len(prompt),
            num_cached_tokens=shared.num_cached_tokens,
            tool_format=self.loaded.tool_format,
            prompt_text=prompt.text if sequence.request.echo else None,
            reasoning_format=self.loaded.reasoning_format,
            is_reasoning=self.loaded.opens_reasoning(prompt.text),
            prompt_logprobs=shared.prompt_logprobs,
        )

    def _segmenter(self, sequence: Sequence, prompt: PreparedPrompt) -> Segmenter | None:
        name = self.loaded.reasoning_format
        if name is None or not isinstance(sequence.request.prompt, ChatPrompt):
            return None
        return make_segmenter(name, is_reasoning=self.loaded.opens_reasoning(prompt.text))

    def _expect_one_less(self, prompt: PreparedPrompt) -> None:
        """One of the sequences that share a start has joined or will not come."""
        shared = self._shared_starts.get(prompt)
        if shared is not None:
            shared.num_expected -= 1
            if shared.num_expected == 0:
                del self._shared_starts[prompt]

    def _sampler_row(self, sequence: Sequence, prompt: PreparedPrompt) -> SamplerRow:
        return make_row(
            sequence.request.sampling,
            self.loaded.defaults,
            seed=sequence.seed,
            prompt_ids=prompt.token_ids,
            vocab_size=self.loaded.vocab_size,
            top_logprobs=sequence.request.top_logprobs,
            constraints=self._constraints.processors(sequence.request, prompt),
        )

    def _make_row(self, sequence: Sequence, prompt: PreparedPrompt) -> Row:
        room = self.loaded.context_length - len(prompt)
        request = sequence.request
        limit = request.default_max_tokens if request.max_tokens is None else request.max_tokens
        completion = Completion(
            self.loaded,
            prompt.token_ids,
            index=sequence.index,
            max_tokens=room if limit is None else min(limit, room),
            stop=sequence.request.stop,
            segmenter=self._segmenter(sequence, prompt),
            marks=self.loaded.marks_of(request.prompt),
        )
        return Row(sequence, prompt, completion, self._admission.first_share(sequence))

    def _retire(self, uids: list[int], broken: Container[int] = ()) -> None:
        if len(uids) == 1:
            self._release(uids[0])
        for variant, batch in self._batches.items():
            leaving = [uid for uid in batch.uids if uid in uids]
            num_unheld = [0 if batch.holds_newest(uid) else 1 for uid in leaving]
            released = zip(leaving, num_unheld, batch.release(leaving), strict=True)
            for uid, num_missing, caches in released:
                keys = self._rows.pop(uid).keys()
                if uid not in broken:
                    self.prefix_cache.insert(keys[: len(keys) - num_missing], caches, variant)
        # of several not before: they hold on to the whole batch until the last of them is copied
        for uid in uids:
            self._release(uid)
        self._num_left.clear()

    def _batch(self, variant: str) -> RowBatch:
        """Rows whose KV state is of different kinds cannot run in one pass."""
        if variant not in self._batches:
            self._batches[variant] = RowBatch(self.loaded.language_model, reads_ahead=not is_cpu())
        return self._batches[variant]
