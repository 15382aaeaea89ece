"""Tokens are drawn as each row asks, whatever the other rows ask."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlx_server.engine.draws import sample
from mlx_server.engine.sampler_row import SamplerRow, SamplingDefaults, make_row
from mlx_server.engine.sampling import RowSampler
from mlx_server.engine.sequence import SamplingParams
from tests.arrays import token_id

Floats = npt.NDArray[np.float64]
VOCAB = 12
NUM_DRAWS = 6000


def row(
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
) -> SamplerRow:
    return SamplerRow(temperature, top_p, top_k, min_p, seed, position=position)


def clone(original: SamplerRow, *, seed: int) -> SamplerRow:
    return replace(original, seed=seed)


def random_logits(num_rows: int, vocab_size: int = 64, seed: int = 1) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(0, 2, (num_rows, vocab_size)), mx.float32)


def draws(logits: list[float], like: SamplerRow, num: int = NUM_DRAWS) -> npt.NDArray[np.int64]:
    """`num` draws from the same logits, each with a seed of its own."""
    rows = [clone(like, seed=seed) for seed in range(num)]
    scores = mx.broadcast_to(mx.array(logits, mx.float32), (num, len(logits)))
    return np.array(sample(scores, rows), dtype=np.int64)


def softmax(logits: Floats) -> Floats:
    weights: Floats = np.exp(logits - logits.max())
    probs: Floats = weights / weights.sum()
    return probs


def expected_probs(logits: list[float], like: SamplerRow) -> Floats:
    """The distribution to draw from, by the definitions: temperature, top_k, top_p, min_p."""
    scaled = np.array(logits, dtype=np.float64) / like.temperature
    ranked = np.argsort(-scaled, kind="stable")
    kept = ranked[: like.top_k] if like.top_k else ranked
    probs = softmax(scaled[kept])
    before = np.cumsum(probs) - probs
    kept = kept[(before < like.top_p) | (np.arange(len(kept)) == 0)]
    kept = kept[softmax(scaled[kept]) >= like.min_p * softmax(scaled[kept]).max() * (1 - 1e-9)]
    full = np.zeros(len(scaled))
    full[kept] = softmax(scaled[kept])
    return full


def chi_square(observed: npt.NDArray[np.int64], probs: Floats) -> float:
    counts = np.bincount(observed, minlength=len(probs))
    assert not counts[probs == 0].any(), "a token was drawn that had to be cut"
    expected = probs[probs > 0] * len(observed)
    return float((((counts[probs > 0] - expected) ** 2) / expected).sum())


def limit(probs: Floats) -> float:
    """Chi-square beyond which one draw in a million would be, by Wilson and Hilferty."""
    free = int((probs > 0).sum()) - 1
    if free == 0:
        return 0.0
    return float(free * (1 - 2 / (9 * free) + 4.75 * np.sqrt(2 / (9 * free))) ** 3)


def test_greedy_rows_take_the_best_token_beside_hot_rows() -> None:
    logits = random_logits(40)
    rows = [row(temperature=0.0 if i % 2 else 1.5, seed=i) for i in range(40)]
    best = np.array(mx.argmax(logits, axis=-1))
    drawn = np.array(sample(logits, rows))
    assert (drawn[1::2] == best[1::2]).all()
    assert (drawn[::2] != best[::2]).any(), "the hot rows must be hot for this to mean anything"


@pytest.mark.parametrize(
    "greedy", [row(temperature=0.0), row(top_p=0.0), row(top_k=1), row(temperature=0.0, top_p=0.0)]
)
def test_every_way_to_ask_for_the_best_token_gives_it(greedy: SamplerRow) -> None:
    logits = random_logits(1)
    rows = [greedy, row(temperature=2.0, top_k=5)]
    scores = mx.concatenate([logits, logits])
    assert sample(scores, rows)[0].item() == mx.argmax(logits).item()
    assert sample(logits, [greedy]).item() == mx.argmax(logits).item()


@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-20, 1e-38, 1e-45, 5e-324])
def test_the_smallest_temperatures_take_the_best_token(temperature: float) -> None:
    logits = mx.array([[-90.0, -3.0, -2.0, -5.0], [1.0, 30.0, 2.0, 3.0]])
    rows = [row(temperature=temperature), row(temperature=temperature, top_p=0.9, top_k=3)]
    assert np.array(sample(logits, rows)).tolist() == [2, 1]


def test_a_seed_draws_the_same_tokens_alone_and_in_company() -> None:
    logits = random_logits(9)
    rows = [
        row(seed=1),
        row(seed=2, temperature=0.0),
        row(seed=3, temperature=0.7, top_p=0.8),
        row(seed=4, top_k=7),
        row(seed=5, min_p=0.1),
        row(seed=6, temperature=1.3),
        row(seed=7, top_k=20, top_p=0.9, min_p=0.05),
        row(seed=8, position=70),
        row(seed=2**64 - 1),
    ]
    together = np.array(sample(logits, rows)).tolist()
    alone = [token_id(sample(logits[i : i + 1], [rows[i]])) for i in range(len(rows))]
    backwards = np.array(sample(logits[::-1], rows[::-1])).tolist()[::-1]
    assert together == alone == backwards


def test_a_seed_draws_the_same_sequence_again_and_other_seeds_others() -> None:
    def sequence(seed: int, num_others: int) -> list[int]:
        sampler = RowSampler([*(row(seed=1000 + i) for i in range(num_others)), row(seed=seed)])
        logits = mx.concatenate([random_logits(num_others), random_logits(1, seed=9)])
        return [token_id(sampler(logits)[-1]) for _ in range(30)]

    assert sequence(5, 0) == sequence(5, 3)
    assert len({tuple(sequence(seed, 0)) for seed in (0, 1, 2, 5, 2**63)}) == 5
    assert len(set(sequence(5, 0))) > 5, "positions must not repeat the first draw"


def test_negative_and_huge_seeds_are_seeds() -> None:
    def made(seed: int) -> SamplerRow:
        return make_row(
            SamplingParams(),
            SamplingDefaults(),
            seed=seed,
            prompt_ids=[],
            vocab_size=4,
            top_logprobs=None,
        )

    logits = random_logits(1)
    drawn = {seed: token_id(sample(logits, [made(seed)])) for seed in (-1, 2**70, 2**64 - 1)}
    assert drawn[-1] == drawn[2**64 - 1]


LOGITS = [2.0, 1.5, 1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5, -2.0, 0.25, 0.75]


@pytest.mark.parametrize(
    "like",
    [
        row(),
        row(temperature=0.5),
        row(temperature=1.9),
        row(top_k=1),
        row(top_k=2),
        row(top_k=6),
        row(top_k=VOCAB),
        row(top_k=VOCAB + 50),
        row(top_p=0.05),
        row(top_p=0.5),
        row(top_p=0.9),
        row(top_p=1.0),
        row(min_p=0.2),
        row(min_p=1.0),
        row(min_p=1e-4),
        row(temperature=0.7, top_p=0.8),
        row(temperature=1.4, top_k=5, top_p=0.7),
        row(top_k=6, top_p=0.9, min_p=0.4),
        row(top_p=0.95, min_p=0.3),
    ],
    ids=lambda r: f"t{r.temperature}-k{r.top_k}-p{r.top_p}-min{r.min_p}",
)
@pytest.mark.parametrize("beside", [None, row(top_k=3)], ids=["alone", "beside-top-k"])
def test_draws_follow_the_distribution_and_cut_exactly_the_right_tokens(
    like: SamplerRow, beside: SamplerRow | None
) -> None:
    logits = [x for x in LOGITS if x != 1.0] if like.top_k == 2 else LOGITS
    probs = expected_probs(logits, like)
    num = NUM_DRAWS
    rows = [clone(like, seed=seed) for seed in range(num)] + ([beside] if beside else [])
    scores = mx.broadcast_to(mx.array(logits, mx.float32), (len(rows), len(logits)))
    observed = np.array(sample(scores, rows), dtype=np.int64)[:num]
    assert set(observed) == set(np.flatnonzero(probs)), "the kept tokens must be exactly these"
    assert chi_square(observed, probs) <= limit(probs) + 1e-9


def test_draws_along_the_positions_of_one_seed_follow_the_distribution() -> None:
    rows = [row(seed=77, position=i) for i in range(NUM_DRAWS)]
    scores = mx.broadcast_to(mx.array(LOGITS, mx.float32), (NUM_DRAWS, VOCAB))
    observed = np.array(sample(scores, rows), dtype=np.int64)
    probs = softmax(np.array(LOGITS))
    assert chi_square(observed, probs) <= limit(probs)
    pairs = observed[:-1] * VOCAB + observed[1:]
    joint = np.outer(probs, probs).ravel()
    assert chi_square(pairs, joint) <= limit(joint), "neighbours must be independent"


def test_neighbouring_seeds_draw_independently() -> None:
    first = draws(LOGITS, row())
    second = np.array(
        sample(
            mx.broadcast_to(mx.array(LOGITS, mx.float32), (NUM_DRAWS, VOCAB)),
            [row(seed=seed, position=1) for seed in range(NUM_DRAWS)],
        ),
        dtype=np.int64,
    )
    joint = np.outer(softmax(np.array(LOGITS)), softmax(np.array(LOGITS))).ravel()
    assert chi_square(first * VOCAB + second, joint) <= limit(joint)


def test_equal_logits_are_drawn_equally_and_top_k_keeps_k_of_them() -> None:
    flat = [0.0] * VOCAB
    assert chi_square(draws(flat, row()), np.full(VOCAB, 1 / VOCAB)) <= limit(np.ones(VOCAB))
    kept = set(draws(flat, row(top_k=4)))
    assert len(kept) == 4
    assert len(set(draws(flat, row(top_p=0.49)))) == 6


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = [0.0, -np.inf, 0.0, -np.inf]
    for like in (row(), row(top_p=0.99), row(min_p=0.01), row(top_k=4), row(temperature=2.0)):
        assert set(draws(logits, like, 500)) == {0, 2}


def test_half_precision_logits_are_sampled_in_single_precision() -> None:
    # in bfloat16 the sum over so many equal tokens stands still long before its end
    logits = mx.zeros((500, 4096), dtype=mx.bfloat16)
    drawn = np.array(sample(logits, [row(seed=i, top_p=0.999) for i in range(500)]))
    assert drawn.max() > 3500


def test_what_a_request_leaves_out_comes_from_the_defaults() -> None:
    defaults = SamplingDefaults(
        temperature=0.3, top_p=0.4, top_k=5, min_p=0.06, repetition_penalty=1.2
    )

    def made(params: SamplingParams) -> SamplerRow:
        return make_row(params, defaults, seed=1, prompt_ids=[1], vocab_size=9, top_logprobs=None)

    silent = made(SamplingParams())
    assert (silent.temperature, silent.top_p, silent.top_k, silent.min_p) == (0.3, 0.4, 5, 0.06)
    assert len(silent.processors) == 1
    spoken = made(
        SamplingParams(temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0)
    )
    assert (spoken.temperature, spoken.top_p, spoken.top_k, spoken.min_p) == (0.0, 1.0, 0, 0.0)
    assert spoken.processors == ()


def test_rows_that_join_and_leave_take_their_state_along() -> None:
    left = RowSampler([row(seed=1), row(seed=2)])
    right = RowSampler([row(seed=3)])
    logits = random_logits(3)
    for _ in range(2):
        left(logits[:2])
    right(logits[2:])
    left.extend(right)
    assert [r.position for r in left.rows] == [2, 2, 1]
    left.keep([0, 2])
    drawn = np.array(left(mx.stack([logits[0], logits[2]]))).tolist()
    alone = [
        token_id(sample(logits[:1], [row(seed=1, position=2)])),
        token_id(sample(logits[2:], [row(seed=3, position=1)])),
    ]
    assert drawn == alone
    left.keep([])
    assert left.rows == []
