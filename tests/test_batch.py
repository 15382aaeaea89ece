"""Rows that decode together say what each would say alone, and leave with their own KV state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlx_server.config import EngineConfig
from mlx_server.engine.batch import RowBatch, RowToken
from mlx_server.engine.kv_caches import leaves
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.prefill import Prefill
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.prompt import PreparedPrompt, prepare
from mlx_server.engine.sampler_row import SamplingDefaults, make_row
from mlx_server.engine.sequence import ChatPrompt, SamplingParams
from tests.engine_runs import picture, user

NUM_TOKENS = 7
Load = Callable[[str], LoadedModel]


def prompt_of(loaded: LoadedModel, text: str, *colors: str) -> PreparedPrompt:
    images = [picture(color) for color in colors]
    return prepare(loaded, ChatPrompt((user(text, len(images)),)), images)


@pytest.fixture(params=[False, True], ids=["step_by_step", "ahead"])
def reads_ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def join(
    loaded: LoadedModel,
    batch: RowBatch,
    uid: int,
    prompt: PreparedPrompt,
    params: SamplingParams | None = None,
    top_logprobs: int | None = None,
) -> list[RowToken]:
    prefill = Prefill(loaded, uid, prompt, PrefixCache(0), step_size=9)
    while not prefill.is_within(None):
        prefill.step()
    row = make_row(
        params or SamplingParams(temperature=0.0),
        SamplingDefaults(),
        seed=uid,
        prompt_ids=prompt.token_ids,
        vocab_size=loaded.vocab_size,
        top_logprobs=top_logprobs,
    )
    return [batch.join(uid, batch.start(prefill.batch), row)]


def collect(batch: RowBatch, into: dict[int, list[RowToken]], steps: int = 1) -> None:
    for _ in range(steps):
        for token in batch.decode():
            into[token.uid].append(token)


def alone(
    loaded: LoadedModel,
    prompt: PreparedPrompt,
    params: SamplingParams | None = None,
    *,
    uid: int = 0,
    num: int = NUM_TOKENS,
) -> list[int]:
    batch, tokens = RowBatch(loaded.language_model), dict[int, list[RowToken]]()
    tokens[uid] = join(loaded, batch, uid, prompt, params)
    while len(tokens[uid]) < num:
        collect(batch, tokens)
    return ids(tokens[uid][:num])


def ids(tokens: list[RowToken]) -> list[int]:
    return [token.token_id for token in tokens]


def prompts_of(loaded: LoadedModel) -> list[PreparedPrompt]:
    prompts = [
        prompt_of(loaded, "hello"),
        prompt_of(loaded, "a much longer question, so that the rows are of different lengths"),
        prompt_of(loaded, "one two three"),
    ]
    if loaded.has_vision:
        prompts += [prompt_of(loaded, "what is this?", "red", "blue")]
    return prompts


def logits_of(loaded: LoadedModel, token_ids: list[int]) -> npt.NDArray[np.float64]:
    """The model's logits behind text, in one piece and without any cache."""
    inputs = mx.array([token_ids])
    output = loaded.language_model(inputs, cache=loaded.make_caches())
    return np.array(output.logits[0, -1].astype(mx.float32), dtype=np.float64)


def test_rows_that_join_and_leave_at_any_time_decode_as_alone(
    family: LoadedModel, reads_ahead: bool
) -> None:
    prompts = prompts_of(family)
    batch = RowBatch(family.language_model, reads_ahead=reads_ahead)
    tokens: dict[int, list[RowToken]] = {}
    for uid, prompt in enumerate(prompts):
        tokens[uid] = join(family, batch, uid, prompt)
        collect(batch, tokens, 2)
    batch.release([1])
    collect(batch, tokens, 2)
    batch.release([0])
    collect(batch, tokens)
    batch.release([batch.uids[-1]])
    tokens[9] = join(family, batch, 9, prompts[1])
    collect(batch, tokens, 3)
    for uid, got in tokens.items():
        assert ids(got) == alone(family, prompts[1 if uid == 9 else uid], num=len(got)), uid


def test_a_released_row_s_caches_hold_its_prompt_and_its_tokens(
    family: LoadedModel, reads_ahead: bool
) -> None:
    prompts = prompts_of(family)
    batch = RowBatch(family.language_model, reads_ahead=reads_ahead)
    tokens: dict[int, list[RowToken]] = {}
    for uid, prompt in enumerate(prompts):
        tokens[uid] = join(family, batch, uid, prompt)
        collect(batch, tokens)
    for uid in (1, 0, *range(2, len(prompts))):
        prompt, said = prompts[uid], ids(tokens[uid])
        if not batch.holds_newest(uid):
            said.pop()
        caches = batch.release([uid])[0]
        offsets = {int(c.offset) for c in leaves(caches) if hasattr(c, "offset")}
        assert offsets == {len(prompt) + len(said)}
        if not prompt.inputs or family.is_warm_vision:
            got = next_token(family, prompt, [*prompt.token_ids, *said], caches)
            assert got == alone(family, prompt, num=len(said) + 2)[-1]
        collect(batch, tokens)
    assert len(batch) == 0
    assert batch.decode() == []


def next_token(
    loaded: LoadedModel, prompt: PreparedPrompt, token_ids: list[int], caches: list[Any]
) -> int:
    """The token after next, by a prefill that starts with nothing but `caches`' last token.

    What the caches hold is `token_ids`; the next token is the argmax behind them, which this has
    to compute from a prompt that is one token longer.
    """
    best = alone(loaded, prompt, num=len(token_ids) - len(prompt) + 1)[-1]
    longer = [*token_ids, best]
    cache = PrefixCache(1 << 30)
    keys = np.concatenate([prompt.keys, np.array(longer[len(prompt) :], dtype=np.int64)])
    cache.insert(keys[:-1], caches)
    prefill = Prefill(
        loaded, 0, PreparedPrompt(longer, keys, inputs=prompt.inputs), cache, step_size=9
    )
    assert prefill.num_cached_tokens == len(token_ids)
    batch = RowBatch(loaded.language_model)
    row = make_row(
        SamplingParams(temperature=0.0),
        SamplingDefaults(),
        seed=0,
        prompt_ids=[],
        vocab_size=loaded.vocab_size,
        top_logprobs=None,
    )
    return batch.join(0, batch.start(prefill.batch), row).token_id


def test_hot_rows_draw_the_same_beside_others_as_alone(load_tiny: Load, reads_ahead: bool) -> None:
    loaded = load_tiny("llama")
    params = {
        0: SamplingParams(temperature=1.0),
        1: SamplingParams(temperature=0.0),
        2: SamplingParams(temperature=0.8, top_p=0.9, top_k=40),
        3: SamplingParams(temperature=1.2, min_p=0.05, presence_penalty=1.0),
    }
    prompts = {uid: prompt_of(loaded, "abc" * (uid + 1)) for uid in params}
    batch = RowBatch(loaded.language_model, reads_ahead=reads_ahead)
    tokens: dict[int, list[RowToken]] = {}
    for uid, one in params.items():
        tokens[uid] = join(loaded, batch, uid, prompts[uid], one)
        collect(batch, tokens)
    collect(batch, tokens, 4)
    for uid, one in params.items():
        got = ids(tokens[uid])
        assert got == alone(loaded, prompts[uid], one, uid=uid, num=len(got))


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_the_repetition_penalty_works_on_the_model_s_logits(
    load_tiny: Load, penalty: float
) -> None:
    # on log-probabilities, which are never positive, it would hardly touch a likely token
    loaded = load_tiny("llama")
    prompt = prompt_of(loaded, "hello hello hello")
    params = SamplingParams(temperature=0.0, repetition_penalty=penalty)
    token_ids = list(prompt.token_ids)
    for _ in range(NUM_TOKENS):
        logits = logits_of(loaded, token_ids)
        seen = sorted(set(token_ids))
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        token_ids.append(int(logits.argmax()))
    assert alone(loaded, prompt, params) == token_ids[len(prompt) :]


def test_logprobs_belong_to_the_row_and_the_token_they_come_with(
    load_tiny: Load, reads_ahead: bool
) -> None:
    loaded = load_tiny("llama")
    prompts = prompts_of(loaded)
    batch = RowBatch(loaded.language_model, reads_ahead=reads_ahead)
    tokens: dict[int, list[RowToken]] = {}
    hot = SamplingParams(temperature=1.5, logit_bias={5: -3.0}, repetition_penalty=1.2)
    tokens[0] = join(loaded, batch, 0, prompts[0], hot, top_logprobs=3)
    collect(batch, tokens, 2)
    tokens[1] = join(loaded, batch, 1, prompts[1], top_logprobs=None)
    collect(batch, tokens)
    tokens[2] = join(loaded, batch, 2, prompts[2], hot, top_logprobs=0)
    collect(batch, tokens, 2)
    batch.release([1])
    collect(batch, tokens, 2)
    for uid, got in tokens.items():
        for place, token in enumerate(got):
            before = [*prompts[uid].token_ids, *ids(got[:place])]
            check_logprobs(token, logits_of(loaded, before), {0: 3, 1: None, 2: 0}[uid])


def check_logprobs(token: RowToken, logits: npt.NDArray[np.float64], depth: int | None) -> None:
    if depth is None:
        assert token.logprobs is None
        return
    assert token.logprobs is not None
    want = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    assert token.logprobs.chosen == pytest.approx(want[token.token_id], abs=1e-3)
    assert [i for i, _ in token.logprobs.top] == np.argsort(-want)[:depth].tolist()
    assert [value for _, value in token.logprobs.top] == pytest.approx(
        np.sort(want)[::-1][:depth].tolist(), abs=1e-3
    )


def test_half_precision_weights_give_probabilities_that_add_up_to_one(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    config = EngineConfig(cpu_dtype="bfloat16")
    loaded = load_checkpoint("llama", tiny_checkpoint("llama"), config)
    batch, tokens = RowBatch(loaded.language_model), dict[int, list[RowToken]]()
    tokens[0] = join(loaded, batch, 0, prompt_of(loaded, "hello"), top_logprobs=loaded.vocab_size)
    collect(batch, tokens, 3)
    for token in tokens[0]:
        assert token.logprobs is not None
        total = sum(np.exp(value) for _, value in token.logprobs.top)
        assert total == pytest.approx(1.0, abs=1e-4)
