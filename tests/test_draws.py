"""Drawing from the likeliest tokens alone gives what drawing from all of them gives."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from mlx_server.engine import draws
from mlx_server.engine.draws import sample
from mlx_server.engine.sampler_row import SamplerRow

VOCAB_SIZE = 12_000
Spy = Callable[..., mx.array | None]


def row(seed: int, **parameters: float) -> SamplerRow:
    given = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, **parameters}
    return SamplerRow(**given, seed=seed)  # type: ignore[arg-type]


def logits(spread: float, num_rows: int, seed: int = 0) -> mx.array:
    return mx.array(
        np.random.default_rng(seed).normal(0, spread, (num_rows, VOCAB_SIZE)), mx.float32
    )


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each attempt with the candidates alone came off."""
    seen: list[bool] = []
    attempt: Spy = draws._draw_from_candidates

    def spy(*args: object) -> mx.array | None:
        tokens = attempt(*args)
        seen.append(tokens is not None)
        return tokens

    monkeypatch.setattr(draws, "_draw_from_candidates", spy)
    return seen


KINDS = [
    {"top_k": 5},
    {"top_k": 40, "top_p": 0.9},
    {"top_p": 0.8},
    {"top_p": 0.5, "min_p": 0.02},
    {"top_k": 1500, "temperature": 1.3},
    {"top_k": 50, "min_p": 0.1, "temperature": 0.4},
]


@pytest.mark.parametrize("parameters", KINDS, ids=str)
def test_the_likeliest_tokens_are_enough(
    parameters: dict[str, float], outcomes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(seed, **parameters) for seed in range(64)]
    scores = logits(5.0, 64)
    quick = sample(scores, rows).tolist()
    assert outcomes == [True]
    monkeypatch.setattr(draws, "NUM_CANDIDATES", ())
    assert sample(scores, rows).tolist() == quick
    assert outcomes == [True]


def test_a_flat_distribution_takes_all_tokens(outcomes: list[bool]) -> None:
    rows = [row(seed, top_p=0.99) for seed in range(400)]
    tokens = sample(mx.zeros((400, VOCAB_SIZE)), rows).tolist()
    assert outcomes == [False, False]
    assert len(set(tokens)) > 350
    assert max(tokens) > VOCAB_SIZE - 1000


def test_a_wide_distribution_takes_more_tokens(outcomes: list[bool]) -> None:
    sample(mx.zeros((2, VOCAB_SIZE)), [row(seed, top_p=0.5) for seed in range(2)])
    assert outcomes == [False, True]


def test_a_row_draws_the_same_beside_others_of_every_kind() -> None:
    kinds = [*KINDS, {}, {"min_p": 0.1}, {"temperature": 0.0}]
    scores = logits(4.0, len(kinds))
    together = sample(scores, [row(i, **kind) for i, kind in enumerate(kinds)]).tolist()
    alone = [sample(scores[i : i + 1], [row(i, **kind)]).item() for i, kind in enumerate(kinds)]
    assert together == alone
    assert together[-1] == mx.argmax(scores[-1]).item()


def test_top_p_draws_each_token_as_often_as_it_is_likely() -> None:
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    scores = mx.full((4000, VOCAB_SIZE), -40.0)
    scores[:, 7:11] = mx.log(mx.array(probs))
    tokens = np.array(sample(scores, [row(seed, top_p=0.85) for seed in range(4000)]))
    shares = np.bincount(tokens, minlength=VOCAB_SIZE)[7:11] / 4000
    assert np.abs(shares - np.array([4, 3, 2, 0]) / 9).max() < 0.03


def test_equal_logits_draw_the_same_in_any_company() -> None:
    # as of weights in half precision: many tokens share the few values at the top
    scores = mx.round(logits(2.0, 1) * 2) / 2
    wide = logits(0.8, 1, seed=1)
    for seed in range(40):
        one = row(seed, top_p=0.6)
        alone = sample(scores, [one]).tolist()
        beside = sample(mx.concatenate([scores, wide]), [one, row(seed, top_p=0.7)]).tolist()
        assert beside[:1] == alone
