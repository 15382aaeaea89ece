"""Log-probabilities are those of the model, before any parameter of the request."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlx_server.engine.logprobs import PendingLogprobs, TopLogprobs
from mlx_server.engine.sampler_row import SamplerRow, SamplingDefaults, make_row
from mlx_server.engine.sampling import RowSampler
from mlx_server.engine.sequence import SamplingParams
from tests.arrays import token_id

VOCAB = 40


def random_logits(num_rows: int, seed: int = 3) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 4, (num_rows, VOCAB)).astype(np.float32)


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def row(
    top_logprobs: int | None, params: SamplingParams | None = None, seed: int = 0
) -> SamplerRow:
    return make_row(
        params or SamplingParams(temperature=0.0),
        SamplingDefaults(),
        seed=seed,
        prompt_ids=[],
        vocab_size=VOCAB,
        top_logprobs=top_logprobs,
    )


def read(sampler: RowSampler) -> list[TopLogprobs | None]:
    assert sampler.newest().logprobs is not None
    return sampler.newest().logprobs.read()


def check(
    given: TopLogprobs | None, logits: npt.NDArray[np.float32], token: int, depth: int
) -> None:
    assert given is not None
    want = log_softmax(logits)
    best = np.argsort(-want)[:depth]
    assert given.chosen == pytest.approx(want[token], abs=1e-4)
    assert [i for i, _ in given.top] == best.tolist()
    assert [value for _, value in given.top] == pytest.approx(want[best].tolist(), abs=1e-4)


@pytest.mark.parametrize("depth", [0, 1, 5, 20])
def test_logprobs_are_the_log_softmax_best_first(depth: int) -> None:
    logits = random_logits(3)
    sampler = RowSampler([row(depth) for _ in range(3)])
    tokens = np.array(sampler(mx.array(logits)))
    for given, one, token in zip(read(sampler), logits, tokens, strict=True):
        check(given, one, int(token), depth)


def test_sampling_parameters_do_not_change_the_logprobs() -> None:
    logits = random_logits(1)
    params = SamplingParams(
        temperature=1.7,
        top_p=0.9,
        top_k=20,
        min_p=0.01,
        presence_penalty=1.0,
        repetition_penalty=1.5,
        logit_bias={7: 100.0},
    )
    sampler = RowSampler([row(5, params)])
    for _ in range(3):
        token = token_id(sampler(mx.array(logits)))
        assert token == 7
        check(read(sampler)[0], logits[0], token, 5)


def test_a_token_that_is_not_among_the_best_still_has_its_logprob() -> None:
    logits = random_logits(1)
    worst = int(logits[0].argmin())
    sampler = RowSampler([row(2, SamplingParams(temperature=0.0, logit_bias={worst: 100.0}))])
    assert token_id(sampler(mx.array(logits))) == worst
    (given,) = read(sampler)
    check(given, logits[0], worst, 2)


def test_each_row_gets_the_depth_it_asked_for() -> None:
    logits = random_logits(4)
    sampler = RowSampler([row(None), row(0), row(3), row(11)])
    tokens = np.array(sampler(mx.array(logits)))
    silent, *others = read(sampler)
    assert silent is None
    for given, depth, i in zip(others, (0, 3, 11), (1, 2, 3), strict=True):
        check(given, logits[i], int(tokens[i]), depth)


def test_nothing_is_captured_when_nobody_asks() -> None:
    sampler = RowSampler([row(None), row(None)])
    sampler(mx.array(random_logits(2)))
    assert sampler.newest().logprobs is None


@pytest.mark.parametrize(
    ("left", "right"), [(2, 9), (9, 2), (None, 4), (4, None), (None, None), (0, 0)]
)
def test_rows_of_different_depth_join(left: int | None, right: int | None) -> None:
    logits = random_logits(2)
    first, second = RowSampler([row(left)]), RowSampler([row(right)])
    tokens = [token_id(s(mx.array(logits[i : i + 1]))) for i, s in enumerate((first, second))]
    first.extend(second)
    if left is None and right is None:
        assert first.newest().logprobs is None
        return
    for i, (given, depth) in enumerate(zip(read(first), (left, right), strict=True)):
        if depth is None:
            assert given is None
        else:
            check(given, logits[i], tokens[i], depth)


def test_rows_that_stay_keep_their_own_numbers() -> None:
    logits = random_logits(3)
    sampler = RowSampler([row(2), row(None), row(4)])
    tokens = np.array(sampler(mx.array(logits)))
    sampler.keep([2, 0])
    last, first = read(sampler)
    check(last, logits[2], int(tokens[2]), 4)
    check(first, logits[0], int(tokens[0]), 2)


def test_a_certain_token_has_a_logprob_of_zero_and_no_more() -> None:
    logits = np.full((1, VOCAB), -60.0, dtype=np.float32)
    logits[0, 3] = 60.0
    sampler = RowSampler([row(1)])
    sampler(mx.array(logits))
    (given,) = read(sampler)
    assert given is not None
    assert given.chosen == 0.0
    assert given.top == ((3, 0.0),)


def test_half_precision_logits_give_probabilities_that_add_up_to_one() -> None:
    half = mx.array(random_logits(1) + 30).astype(mx.bfloat16)
    sampler = RowSampler([row(VOCAB)])
    token = token_id(sampler(half))
    (given,) = read(sampler)
    exact = np.array(half.astype(mx.float32))
    assert given is not None
    assert sum(np.exp(value) for _, value in given.top) == pytest.approx(1.0, abs=1e-4)
    assert given.chosen == pytest.approx(log_softmax(exact)[0, token], abs=1e-4)


def test_pending_numbers_of_nobody_are_nothing() -> None:
    assert PendingLogprobs.join(None, 1, None, 2) is None
