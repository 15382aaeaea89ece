"""What the KV state of a sequence takes of memory, by its number of tokens.

Nothing is computed for it: the model's own caches are filled by a forward pass that MLX is never
asked to run, and an array that is still to be computed knows its shape and its type.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from mlx_vlm.models.cache import CacheMemory

from mlx_server.engine.kv_caches import KVCaches, leaves
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prefill import LAST_PIECE, Prefill
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.prompt import PreparedPrompt

PROBE_LENGTH = 2
LONG_PROBE_LENGTH = 513
"""One token more than two steps of allocation: both lengths end one token into a step."""
SHORT_PROBE_LENGTH = 1


@dataclass(frozen=True, slots=True)
class CacheCost:
    """One layer's cache: `fixed_bytes` for any text, and `slot_bytes` for each position, which are
    allocated by `step` at a time and not beyond `window`.
    """

    fixed_bytes: int = 0
    slot_bytes: int = 0
    step: int = 1
    window: int | None = None
    min_slots: int = 0

    def bytes(self, num_tokens: int) -> int:
        """After a prompt that came in one piece but for its end of LAST_PIECE tokens at most, which
        `Prefill` leaves to the batch; with a window, the most that it may be for any such end.
        """
        if num_tokens <= 0:
            return 0
        if self.window is None:
            slots = -(-max(num_tokens, self.min_slots) // self.step) * self.step
        else:
            # a token that comes alone begins a new step, several stand before what they push out
            alone = min(num_tokens - 1 + self.step, self.window)
            several = min(num_tokens, self.window - 1 + LAST_PIECE)
            slots = max(alone, several, self.min_slots)
        return self.fixed_bytes + slots * self.slot_bytes

    def or_greater(self, other: CacheCost) -> CacheCost:
        """What is enough for either of two forms of one layer's cache."""
        windows = (self.window, other.window)
        return CacheCost(
            max(self.fixed_bytes, other.fixed_bytes),
            max(self.slot_bytes, other.slot_bytes),
            max(self.step, other.step),
            None if None in windows else max(filter(None, windows)),
            max(self.min_slots, other.min_slots),
        )


@dataclass(frozen=True, slots=True)
class KVCost:
    """The caches of all layers. A batch keeps each of its rows as long as its longest.

    `is_packed` says that some rows keep them in few bits.
    """

    caches: tuple[CacheCost, ...]
    is_packed: bool = False

    def row_bytes(self, num_tokens: int) -> int:
        return sum(cache.bytes(num_tokens) for cache in self.caches)

    def largest_cache_bytes(self, num_tokens: int) -> int:
        return max((cache.bytes(num_tokens) for cache in self.caches), default=0)

    def window_bytes(self, chunk: int) -> int:
        """What the layers with a window hold beyond it while a chunk of a prompt runs."""
        return sum(c.slot_bytes * chunk for c in self.caches if c.window is not None)

    @property
    def step(self) -> int:
        """The most positions that are allocated before there are tokens for them."""
        return max((cache.step for cache in self.caches), default=1)


def measure_kv_cost(loaded: LoadedModel) -> KVCost:
    """Must run on the thread that runs the model, while no sequence of it runs.

    Where long prompts alone are kept in few bits, it is what is enough for both kinds of rows.
    """
    wanted = loaded.kv_quantisation
    if wanted is None or wanted.start == 0:
        return _measure(loaded)
    exact = _measure(replace(loaded, kv_quantisation=None))
    few_bits = _measure(replace(loaded, kv_quantisation=replace(wanted, start=0)))
    both = zip(exact.caches, few_bits.caches, strict=True)
    return KVCost(tuple(itertools.starmap(CacheCost.or_greater, both)), is_packed=True)


def _measure(loaded: LoadedModel) -> KVCost:
    costs = costs_of(_fill(loaded, PROBE_LENGTH), PROBE_LENGTH)
    if None in costs:
        short = leaves(_fill(loaded, SHORT_PROBE_LENGTH))
        long = leaves(_fill(loaded, LONG_PROBE_LENGTH))
        linear = itertools.starmap(_linear_cost, zip(short, long, strict=True))
        costs = [known or guess for known, guess in zip(costs, linear, strict=True)]
    is_packed = loaded.kv_quantisation is not None
    return KVCost(tuple(cost for cost in costs if cost is not None), is_packed)


def costs_of(caches: KVCaches, num_tokens: int) -> list[CacheCost | None]:
    """One for each cache, which holds `num_tokens`; None for a kind that mlx_vlm does not
    describe.
    """
    return [_known_cost(cache, num_tokens) for cache in leaves(caches)]


def _known_cost(cache: Any, num_tokens: int) -> CacheCost | None:
    describe = getattr(cache, "memory_profile", None)
    profile: CacheMemory | None = describe(num_tokens) if describe is not None else None
    if profile is None:
        return None
    return CacheCost(
        fixed_bytes=profile.fixed_bytes,
        slot_bytes=int(np.ceil(profile.bytes_per_token)),
        step=max(1, profile.step),
        window=profile.window_size,
        min_slots=profile.min_capacity,
    )


def _linear_cost(short: Any, long: Any) -> CacheCost:
    """A cache of an unknown kind, by two of it."""
    num_tokens = LONG_PROBE_LENGTH - SHORT_PROBE_LENGTH
    slot_bytes = -(-(long.nbytes - short.nbytes) // num_tokens)
    return CacheCost(max(0, short.nbytes - SHORT_PROBE_LENGTH * slot_bytes), slot_bytes)


def _fill(loaded: LoadedModel, num_tokens: int) -> KVCaches:
    """Caches with a prompt that is never run."""
    token_id = 0 if loaded.image_token_id != 0 else 1
    # the end of a prompt, here one token, is left to the batch
    ids = [token_id] * (num_tokens + 1)
    prompt = PreparedPrompt(ids, np.array(ids, dtype=np.int64))
    prefill = Prefill(loaded, -1, prompt, PrefixCache(0), step_size=num_tokens)
    batch = prefill.batch
    batch.model(
        batch._input_ids[:, :num_tokens],
        cache=batch.prompt_cache,
        inputs_embeds=batch._inputs_embeds[:, :num_tokens],
        n_to_process=num_tokens,
        **batch._prompt_kwargs_for_step(num_tokens),
    )
    return prefill.caches
