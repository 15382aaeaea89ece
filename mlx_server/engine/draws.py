"""Logits and the parameters of every row -> the next token of every row.

Temperature comes first, then top_k, top_p and min_p of what is left, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from mlx_server.engine.device import is_cpu
from mlx_server.engine.sampler_row import SamplerRow, random_keys

# On a CPU the whole vocabulary is sorted only for rows that so many likeliest tokens do not serve.
NUM_CANDIDATES = (1024, 8192)
# What the others may weigh and still be left out of the sum of all.
NEGLIGIBLE = 1e-6


def sample(scores: mx.array, rows: list[SamplerRow]) -> mx.array:
    """Token ids, shape (rows,).

    Every kind of row is drawn apart from the others: none pays for what another one asks for.
    """
    tokens = mx.argmax(scores, axis=-1)
    hot = [i for i, row in enumerate(rows) if not row.is_greedy]
    plain = [i for i in hot if rows[i].top_k == 0 and rows[i].top_p >= 1.0]
    for indices, draw in ((plain, _draw), ([i for i in hot if i not in plain], _draw_truncated)):
        if indices:
            chosen = [rows[i] for i in indices]
            at = mx.array(indices)
            heat = mx.array([[row.temperature] for row in chosen])
            tokens[at] = draw(scores[at] / heat, chosen)
    return tokens


def _draw(scaled: mx.array, rows: list[SamplerRow]) -> mx.array:
    return mx.argmax(_apply_min_p(scaled, rows) + _gumbel(rows, scaled.shape[-1]), axis=-1)


def _apply_min_p(scaled: mx.array, rows: list[SamplerRow]) -> mx.array:
    if not any(row.min_p > 0 for row in rows):
        return scaled
    floor = mx.array([[np.log(row.min_p) if row.min_p > 0 else -np.inf] for row in rows])
    return mx.where(scaled >= mx.max(scaled, axis=-1, keepdims=True) + floor, scaled, -mx.inf)


def _gumbel(rows: list[SamplerRow], vocab_size: int) -> mx.array:
    """Noise of shape (rows, vocab): argmax(log p + noise) is a draw from p."""
    draw: Callable[[mx.array], mx.array] = mx.vmap(
        lambda key: mx.random.gumbel(shape=(vocab_size,), key=key)
    )
    return draw(random_keys(rows))


def _draw_truncated(scaled: mx.array, rows: list[SamplerRow]) -> mx.array:
    """Draw from the likeliest tokens that top_k and top_p leave."""
    widest = max(row.top_k for row in rows)
    for num_candidates in NUM_CANDIDATES if is_cpu() else ():
        if widest <= num_candidates < scaled.shape[-1]:
            tokens = _draw_from_candidates(scaled, rows, num_candidates)
            if tokens is not None:
                return tokens
    order = mx.argsort(-scaled, axis=-1)
    ranked = mx.take_along_axis(scaled, order, axis=-1)
    place = _draw_ranked(ranked, mx.logsumexp(ranked, axis=-1, keepdims=True), rows)
    return mx.take_along_axis(order, place, axis=-1)[:, 0]


def _draw_from_candidates(
    scaled: mx.array, rows: list[SamplerRow], num_candidates: int
) -> mx.array | None:
    """None if top_p of some row reaches past the candidates.

    Waits for the device, unless every row has a top_k.
    """
    found = mx.argpartition(-scaled, kth=num_candidates - 1, axis=-1)[:, :num_candidates]
    # equal logits rank by their ids, as when all are sorted: a row draws the same in any company
    found = mx.sort(found, axis=-1)
    values = mx.take_along_axis(scaled, found, axis=-1)
    order = mx.argsort(-values, axis=-1)
    ranked = mx.take_along_axis(values, order, axis=-1)
    log_sum = mx.logsumexp(ranked, axis=-1, keepdims=True)
    open_ended = [i for i, row in enumerate(rows) if row.top_k == 0]
    if open_ended:
        at = mx.array(open_ended)
        log_total = _log_total(scaled[at], ranked[at], log_sum[at])
        log_top_p = mx.array([[np.log(rows[i].top_p)] for i in open_ended])
        if mx.any(log_sum[at] - log_total < log_top_p).item():
            return None
        log_sum[at] = log_total
    place = _draw_ranked(ranked, log_sum, rows)
    return mx.take_along_axis(found, mx.take_along_axis(order, place, axis=-1), axis=-1)[:, 0]


def _log_total(scaled: mx.array, ranked: mx.array, log_sum: mx.array) -> mx.array:
    """logsumexp of all tokens, taken of the candidates alone where the rest weighs nothing."""
    num_others = scaled.shape[-1] - ranked.shape[-1]
    heaviest_rest = ranked[:, -1:] + float(np.log(num_others))
    is_negligible = heaviest_rest - log_sum < float(np.log(NEGLIGIBLE))
    if mx.all(is_negligible).item():
        return log_sum
    return mx.where(is_negligible, log_sum, mx.logsumexp(scaled, axis=-1, keepdims=True))


def _draw_ranked(ranked: mx.array, log_sum: mx.array, rows: list[SamplerRow]) -> mx.array:
    """The rank of the drawn token, shape (rows, 1).

    `ranked` are the logits in falling order, `log_sum` the logsumexp of all tokens of each row.
    """
    size = ranked.shape[-1]
    rank = mx.arange(size)
    top_k = mx.array([[row.top_k if row.top_k > 0 else size] for row in rows])
    ranked = mx.where(rank < top_k, ranked, -mx.inf)
    kept_sum = mx.logsumexp(ranked, axis=-1, keepdims=True)
    log_sum = mx.where(mx.array([[row.top_k > 0] for row in rows]), kept_sum, log_sum)
    probs = mx.exp(ranked - log_sum)
    before = mx.cumsum(probs, axis=-1) - probs
    top_p = mx.array([[row.top_p] for row in rows])
    min_p = mx.array([[row.min_p] for row in rows])
    # the first token always stays, whatever rounding does to the sum before it
    stays = (rank == 0) | (((before < top_p) | (top_p >= 1.0)) & (probs >= min_p * probs[:, :1]))
    up_to = mx.cumsum(mx.where(stays, probs, 0.0), axis=-1)
    draw: Callable[[mx.array], mx.array] = mx.vmap(lambda key: mx.random.uniform(key=key))
    target = draw(random_keys(rows))[:, None] * up_to[:, -1:]
    return mx.sum(up_to <= target, axis=-1, keepdims=True)
