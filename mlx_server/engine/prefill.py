"""One prompt on its way through the model, chunk by chunk, from where the prefix cache left off."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
from mlx_vlm.generate.ar import PromptProcessingBatch, _slice_sequence_aligned_prompt_kwarg
from mlx_vlm.generate.common import _chunked_prefill_enabled

from mlx_server.engine.batch import NO_LIMIT
from mlx_server.engine.kv_caches import KVCaches, fork
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prefix_cache import PrefixCache, PrefixMatch
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.engine.prompt_scores import SCORED_PIECE, PromptScores
from mlx_server.engine.sequence import PromptLogprobs
from mlx_server.errors import UnsupportedParameter

# So few tokens run together with the last one, although some models then compute logits for all of
# them: that costs less than another pass through the weights.
LAST_PIECE = 48
# Nor is a pass made for KV state that would spare another prompt fewer than this.
MIN_SPARED = 48
# One counts tokens, and takes what it is told for a padded batch; the other cuts the positions of a
# whole prompt, and tells them only of a prompt with pictures.
PLACE_THEMSELVES = frozenset({"minimax_m3_vl", "falcon_ocr"})


class Prefill:
    """Runs all of a prompt but its end, which `RowBatch.start` runs for the last logits.

    A prompt that its model must see whole is left to `start` altogether. One whose own tokens have
    logprobs begins at its beginning and leaves no more than its last token.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        uid: int,
        prompt: PreparedPrompt,
        prefix_cache: PrefixCache,
        *,
        step_size: int,
    ) -> None:
        self.uid = uid
        self.prompt = prompt
        self._prefix_cache = prefix_cache
        self._step_size = step_size
        is_scored = prompt.top_logprobs is not None
        self._scores = PromptScores(loaded, prompt) if is_scored else None
        self._last_piece = 1 if is_scored else min(LAST_PIECE, step_size)
        self.variant = loaded.kv_variant(len(prompt))
        can_start_warm = not is_scored and (not prompt.inputs or loaded.is_warm_vision)
        match = prefix_cache.match(prompt.keys, self.variant) if can_start_warm else None
        self._begin(loaded, match)
        if self._is_whole and self.num_cached_tokens:
            self._begin(loaded, None)

    def is_within(self, max_tokens: int | None) -> bool:
        """Whether what is left is a piece for `start`, of `max_tokens` at most if that is given."""
        if self._is_whole:
            return True
        limit = min(self._last_piece, max_tokens or self._last_piece)
        return not self._checkpoints_left() and len(self.prompt) - self.num_done <= limit

    @property
    def caches(self) -> KVCaches:
        """KV state of the first `num_done` tokens."""
        return self._caches

    def step(self, max_tokens: int | None = None) -> None:
        """Run one chunk; it ends at the next checkpoint, where a copy of the KV state is kept."""
        end = self.num_done + min(self._step_size, max_tokens or self._step_size)
        end = min([end, len(self.prompt) - 1, *self._checkpoints_left()])
        while self.num_done < end:
            self._run(end - self.num_done)
        if self.num_done in self._checkpoints:
            keys = self.prompt.keys[: self.num_done]
            self._prefix_cache.insert(keys, fork(self._caches), self.variant)

    def _run(self, num_tokens: int) -> None:
        size = num_tokens if self._scores is None else min(num_tokens, SCORED_PIECE)
        self.batch.prefill_step_size = size
        self.num_done += self.batch.prompt_step()
        mx.eval([cache.state for cache in self._caches])
        if self._scores is not None:
            self._scores.read()

    @property
    def is_broken(self) -> bool:
        """Whether logits of the prompt were no numbers, as far as somebody has looked at them."""
        return self._scores is not None and self._scores.is_broken

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Those of the prompt, if they were asked for; to be read when only its end is left."""
        return None if self._scores is None else self._scores.all()

    def _checkpoints_left(self) -> list[int]:
        return [place for place in self._checkpoints if place > self.num_done]

    def _begin(self, loaded: LoadedModel, match: PrefixMatch | None) -> None:
        self.num_cached_tokens = match.num_tokens if match else 0
        self.num_done = self.num_cached_tokens
        self._checkpoints = worth_keeping(self.prompt, self.num_cached_tokens)
        self._caches = match.caches if match else loaded.make_caches(self.variant)
        self.batch = self._make_batch(loaded)
        # mlx_vlm asks only the inner model whether it may be given the prompt in chunks
        if not _may_be_cut(loaded, self.batch):
            self.batch.prefill_step_size = None
        self._is_whole = self.batch.prefill_step_size is None
        if self._scores is not None:
            self.batch.model = self._scores

    def _make_batch(self, loaded: LoadedModel) -> PromptProcessingBatch:
        embeddings, kwargs = _embed(loaded, self.prompt, self.num_cached_tokens)
        return PromptProcessingBatch(
            model=loaded.language_model,
            uids=[self.uid],
            input_ids=[self.prompt.token_ids[self.num_cached_tokens :]],
            max_tokens=[NO_LIMIT],
            inputs_embeds=embeddings,
            prompt_kwargs=kwargs,
            prefill_step_size=self._step_size,
            warm_cache=self._caches,
        )


def worth_keeping(prompt: PreparedPrompt, num_cached: int) -> list[int]:
    """The checkpoints that spare another prompt enough, beside the KV state kept before them.

    Of a prompt with pictures, which cost more than their tokens, all.
    """
    kept: list[int] = []
    for place in prompt.checkpoints:
        num_spared = place - (kept[-1] if kept else num_cached)
        if prompt.inputs or num_spared >= MIN_SPARED:
            kept.append(place)
    return kept


def with_scores(loaded: LoadedModel, prompt: PreparedPrompt, top_logprobs: int) -> PreparedPrompt:
    """The same prompt, whose own tokens have logprobs; raises UnsupportedParameter if the model
    takes no prompt in pieces.
    """
    if must_be_whole(loaded, prompt):
        raise UnsupportedParameter(
            "This model gives no logprobs of a prompt. Leave out `echo` or `logprobs`.",
            param="echo",
        )
    return replace(prompt, top_logprobs=top_logprobs)


def must_be_whole(loaded: LoadedModel, prompt: PreparedPrompt) -> bool:
    """Whether the prompt runs in one piece, as far as can be told before it begins."""
    allowed: bool = _chunked_prefill_enabled(
        loaded.model,
        input_ids=mx.array([prompt.token_ids]) if prompt.inputs else None,
        prefill_kwargs=dict(prompt.inputs),
    )
    return not allowed


def _may_be_cut(loaded: LoadedModel, batch: PromptProcessingBatch) -> bool:
    allowed: bool = _chunked_prefill_enabled(
        loaded.model,
        input_ids=batch._input_ids,
        inputs_embeds=batch._inputs_embeds,
        prompt_cache=batch.prompt_cache,
        prefill_kwargs=batch._prompt_kwargs,
    )
    return allowed


def _embed(
    loaded: LoadedModel, prompt: PreparedPrompt, start: int
) -> tuple[mx.array, dict[str, Any]]:
    """Embeddings from position `start` on, and what else the language model needs to place them.

    The vision tower runs only if a picture lies behind `start`.
    """
    suffix = prompt.token_ids[start:]
    if prompt.inputs and loaded.image_token_id in suffix:
        embeddings, features = _embed_with_images(loaded, prompt, start)
    else:
        ids = mx.array([suffix])
        text = loaded.model.get_input_embeddings(ids, None, mask=mx.ones_like(ids))
        embeddings, features = text.inputs_embeds, {}
    return embeddings, {**features, **_positions(loaded, prompt, start, features)}


def _embed_with_images(
    loaded: LoadedModel, prompt: PreparedPrompt, start: int
) -> tuple[mx.array, dict[str, Any]]:
    raw = dict(prompt.inputs)
    pixels, mask = raw.pop("pixel_values"), raw.pop("attention_mask", None)
    ids = mx.array([prompt.token_ids])
    features = loaded.model.get_input_embeddings(ids, pixels, mask=mask, **raw).to_dict()
    embeddings = features.pop("inputs_embeds")
    features = {name: value for name, value in features.items() if value is not None}
    if "deepstack_visual_embeds" in features:
        # The model finds the features of a chunk's images by the mask of the whole prompt, which
        # mlx_vlm would cut to the chunk if it had the length of the prompt.
        features["visual_pos_masks"] = mx.pad(features["visual_pos_masks"], [(0, 0), (0, 1)])
    # the language model itself cuts masks of the whole prompt to its chunk
    return embeddings[:, start:], {**raw, **features}


def _positions(
    loaded: LoadedModel, prompt: PreparedPrompt, start: int, features: dict[str, Any]
) -> dict[str, mx.array]:
    """Positions from `start` on, and by how much those of the answer differ from a count of tokens:
    pictures take fewer than they have tokens.

    Nothing for models that know no such difference.
    """
    language_model = loaded.language_model
    if not hasattr(language_model, "get_rope_index"):
        return {}
    if loaded.model_type in PLACE_THEMSELVES:
        return {"rope_deltas": features.get("rope_deltas", mx.zeros((1, 1), dtype=mx.int32))}
    positions, deltas = features.get("position_ids"), features.get("rope_deltas")
    if positions is None or deltas is None:
        positions, deltas = language_model.get_rope_index(
            mx.array([prompt.token_ids]), image_grid_thw=prompt.inputs.get("image_grid_thw")
        )
    # Some models keep these of the prompt they have seen last and prefer them to what they are
    # told, or start anew where they keep none.
    language_model._position_ids = None
    language_model._rope_deltas = deltas
    suffix = _slice_sequence_aligned_prompt_kwarg("position_ids", positions, start=start)
    return {"position_ids": suffix, "rope_deltas": deltas}
