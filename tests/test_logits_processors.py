"""Penalties and biases against their definitions, over the steps of a sequence."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_server.engine.logits_processors import LogitBias, Penalties
from mlx_server.engine.sampler_row import SamplerRow, SamplingDefaults, make_row
from mlx_server.engine.sampling import RowSampler
from mlx_server.engine.sequence import SamplingParams
from tests.arrays import token_id

Floats = npt.NDArray[np.float64]
VOCAB = 16


def expected(
    logits: Floats, params: SamplingParams, prompt_ids: list[int], generated: list[int]
) -> Floats:
    """OpenAI's two penalties over the completion, and the repetition penalty of Keskar et al. over
    all tokens seen.
    """
    logits = logits.copy()
    counts = np.bincount(generated, minlength=VOCAB)[:VOCAB]
    if params.repetition_penalty is not None:
        for i in {*prompt_ids, *generated} & set(range(VOCAB)):
            factor = params.repetition_penalty
            logits[i] = logits[i] / factor if logits[i] > 0 else logits[i] * factor
    logits -= params.presence_penalty * (counts > 0) + params.frequency_penalty * counts
    for i, bias in params.logit_bias.items():
        if 0 <= i < VOCAB:
            logits[i] += bias
    return logits


def make(params: SamplingParams, prompt_ids: list[int]) -> SamplerRow:
    return make_row(
        params,
        SamplingDefaults(temperature=0.0),
        seed=0,
        prompt_ids=prompt_ids,
        vocab_size=VOCAB,
        top_logprobs=None,
    )


def apply(row: SamplerRow, logits: Floats, last: int | None) -> Floats:
    scores = mx.array(logits, mx.float32)
    for processor in row.processors:
        scores = processor(scores, None if last is None else mx.array(last))
    return np.array(scores, dtype=np.float64)


penalties = st.floats(-2.0, 2.0, width=16)
tokens = st.integers(0, VOCAB - 1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.builds(
        SamplingParams,
        presence_penalty=penalties,
        frequency_penalty=penalties,
        repetition_penalty=st.none() | st.floats(0.25, 4.0, width=16),
        logit_bias=st.dictionaries(st.integers(-1, VOCAB + 3), st.floats(-100, 100, width=16)),
    ),
    st.lists(st.integers(0, VOCAB + 3), max_size=6),
    st.lists(tokens, max_size=8),
    st.integers(0, 2**32 - 1),
)
def test_processors_do_what_their_definitions_say_at_every_step(
    params: SamplingParams, prompt_ids: list[int], generated: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    row = make(params, prompt_ids)
    for step in range(len(generated) + 1):
        logits = random.normal(0, 5, VOCAB).astype(np.float32).astype(np.float64)
        got = apply(row, logits, generated[step - 1] if step else None)
        want = expected(logits, params, prompt_ids, generated[:step])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_a_sampler_follows_the_definitions_along_a_whole_sequence() -> None:
    random = np.random.default_rng(4)
    steps = random.normal(0, 1, (40, VOCAB)).astype(np.float32).astype(np.float64)
    params = SamplingParams(
        presence_penalty=0.3,
        frequency_penalty=0.2,
        repetition_penalty=1.4,
        logit_bias={3: 1.0, 5: -100.0},
    )
    prompt_ids = [1, 2, 2, 9]
    plain = make(SamplingParams(), [])
    # a row without processors sits before it, so that rows and states may not be mixed up
    sampler = RowSampler([plain, make(params, prompt_ids)])
    wanted: list[int] = []
    drawn: list[int] = []
    for logits in steps:
        wanted.append(int(expected(logits, params, prompt_ids, wanted).argmax()))
        first, second = np.array(sampler(mx.array(np.stack([logits, logits]), mx.float32))).tolist()
        assert first == logits.argmax()
        drawn.append(second)
    assert drawn == wanted
    assert 5 not in drawn


def test_rows_with_processors_keep_their_counts_when_others_join_and_leave() -> None:
    logits = mx.array(np.linspace(1, 2, VOCAB), mx.float32)[None]
    never_twice = SamplingParams(presence_penalty=2.0)
    alone = RowSampler([make(never_twice, [])])
    shared = RowSampler([make(SamplingParams(), [])])
    late = RowSampler([make(never_twice, [])])
    want = [token_id(alone(logits)) for _ in range(6)]

    got = [token_id(late(logits))]
    shared(logits)
    shared.extend(late)
    both = mx.concatenate([logits, logits])
    got += [token_id(shared(both)[1]) for _ in range(2)]
    shared.keep([1])
    got += [token_id(shared(logits)) for _ in range(3)]
    assert got == want == list(range(VOCAB - 1, VOCAB - 7, -1))


def test_a_bias_of_a_hundred_bans_or_forces_a_token() -> None:
    logits = np.zeros(VOCAB)
    logits[7] = 30.0
    banned = make(SamplingParams(logit_bias={7: -100.0}), [])
    assert apply(banned, logits, None).argmax() != 7
    forced = make(SamplingParams(logit_bias={2: 100.0}), [])
    assert apply(forced, logits, None).argmax() == 2


@pytest.mark.parametrize("bias", [{}, {-1: 5.0}, {VOCAB: 5.0}, {10**12: 5.0}])
def test_ids_outside_of_the_vocabulary_are_ignored(bias: dict[int, float]) -> None:
    processor = LogitBias(SamplingParams(logit_bias=bias), VOCAB)
    assert np.array(processor(mx.zeros(VOCAB), None)).tolist() == [0.0] * VOCAB


def test_prompt_ids_outside_of_the_vocabulary_are_ignored() -> None:
    processor = Penalties(SamplingParams(), 2.0, [VOCAB, 99, -1], VOCAB)
    assert np.array(processor(mx.ones(VOCAB), None)).tolist() == [1.0] * VOCAB
