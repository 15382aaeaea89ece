"""A prompt gives the same logits in any number of chunks, from any place where it may begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from mlx_server.config import EngineConfig
from mlx_server.engine.batch import RowBatch, RowToken
from mlx_server.engine.kv_cost import measure_kv_cost
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.prefill import Prefill
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.prompt import PreparedPrompt, prepare
from mlx_server.engine.sampler_row import SamplingDefaults, make_row
from mlx_server.engine.sequence import ChatPrompt, RawPrompt, SamplingParams
from tests.engine_runs import assistant, picture, system, user
from tests.scripted import Script, ScriptedLoader, write_scripted_checkpoint

Load = Callable[[str], LoadedModel]
PLENTY = 1 << 30
LONG = "a question that is long enough for many chunks"
# their positions in a prompt with pictures are not those of its tokens
PLACES_PICTURES = ("qwen3_vl", "qwen2_5_vl", "glm4v")
VISION = ("gemma3", "gemma3_window_8", "glm4v", "qwen2_5_vl", "qwen3_vl")


def with_images(loaded: LoadedModel) -> PreparedPrompt:
    """Two pictures in two turns, where the model can see them."""
    num = int(loaded.has_vision)
    turns = (user("what is it?", num), assistant("a box"), user("and this?", num))
    return prepare(loaded, ChatPrompt(turns), [picture("red"), picture("blue")][: 2 * num])


def text_prompt(loaded: LoadedModel, *texts: str) -> PreparedPrompt:
    """User and assistant in turn."""
    turns = [user(text) if i % 2 == 0 else assistant(text) for i, text in enumerate(texts)]
    return prepare(loaded, ChatPrompt(tuple(turns)), [])


def picture_prompt(loaded: LoadedModel, color: str, size: int = 64) -> PreparedPrompt:
    return prepare(loaded, ChatPrompt((user("what is it?", 1),)), [picture(color, size)])


def begin(
    loaded: LoadedModel,
    prompt: PreparedPrompt,
    cache: PrefixCache | None = None,
    step_size: int = 4096,
    uid: int = 0,
) -> Prefill:
    return Prefill(
        loaded, uid, prompt, PrefixCache(0) if cache is None else cache, step_size=step_size
    )


def finish(loaded: LoadedModel, prefill: Prefill) -> npt.NDArray[np.float64]:
    """The log-probabilities of all tokens at the first place of the answer and at the second."""
    while not prefill.is_within(None):
        prefill.step()
    batch = RowBatch(loaded.language_model)
    first = join(loaded, batch, prefill)
    return np.array([first, *decode(loaded, batch)])


def join(loaded: LoadedModel, batch: RowBatch, prefill: Prefill) -> list[float]:
    """Let a prompt that is through decode with the others; what it says of its first token."""
    row = make_row(
        SamplingParams(temperature=0.0),
        SamplingDefaults(),
        seed=0,
        prompt_ids=[],
        vocab_size=loaded.vocab_size,
        top_logprobs=loaded.vocab_size,
    )
    return by_id(loaded, batch.join(prefill.uid, batch.start(prefill.batch), row))


def decode(loaded: LoadedModel, batch: RowBatch) -> list[list[float]]:
    return [by_id(loaded, token) for token in batch.decode()]


def by_id(loaded: LoadedModel, token: RowToken) -> list[float]:
    assert token.logprobs is not None
    logprobs = dict(token.logprobs.top)
    return [logprobs[i] for i in range(loaded.vocab_size)]


def in_one_piece(loaded: LoadedModel, prompt: PreparedPrompt) -> npt.NDArray[np.float64]:
    return finish(loaded, begin(loaded, prompt))


@pytest.mark.parametrize("step_size", [1, 7, 33])
def test_chunks_of_any_size_give_the_same_logits(family: LoadedModel, step_size: int) -> None:
    prompt = with_images(family)
    chunked = finish(family, begin(family, prompt, step_size=step_size))
    np.testing.assert_allclose(chunked, in_one_piece(family, prompt), atol=2e-3)


def test_a_prefill_that_begins_anywhere_in_the_prompt_gives_the_same_logits(
    family: LoadedModel,
) -> None:
    prompt = with_images(family) if family.is_warm_vision else text_prompt(family, LONG)
    want = in_one_piece(family, prompt)
    for start in range(1, len(prompt), 6):
        cache = PrefixCache(PLENTY)
        first = begin(family, prompt, step_size=start)
        first.step()
        cache.insert(prompt.keys[: first.num_done], first.caches)
        warm = begin(family, prompt, cache, step_size=11)
        assert warm.num_cached_tokens == first.num_done > 0
        np.testing.assert_allclose(finish(family, warm), want, atol=2e-3, err_msg=f"from {start}")


Fresh = Callable[[PreparedPrompt], npt.NDArray[np.float64]]


@pytest.fixture(params=PLACES_PICTURES)
def placing(request: pytest.FixtureRequest, load_tiny: Load) -> LoadedModel:
    return load_tiny(str(request.param))


@pytest.fixture
def fresh(placing: LoadedModel, tiny_checkpoint: Callable[[str], Path]) -> Fresh:
    """What a model says of a prompt that is the first it ever sees."""

    def answer(prompt: PreparedPrompt) -> npt.NDArray[np.float64]:
        loaded = load_checkpoint(placing.id, tiny_checkpoint(placing.id), EngineConfig())
        return in_one_piece(loaded, prompt)

    return answer


def test_prompts_are_placed_as_if_there_were_no_others(placing: LoadedModel, fresh: Fresh) -> None:
    measure_kv_cost(placing)
    prompts = [
        text_prompt(placing, "a"),
        text_prompt(placing, LONG),
        picture_prompt(placing, "red", 96),
        text_prompt(placing, "abc"),
        with_images(placing),
        text_prompt(placing, LONG, "yes", "and then?"),
    ]
    cache, num_cached = PrefixCache(PLENTY), list[int]()
    for prompt in prompts:
        for step_size in (4096, 9):
            got = finish(placing, begin(placing, prompt, step_size=step_size))
            np.testing.assert_allclose(got, fresh(prompt), atol=2e-3)
        warm = begin(placing, prompt, cache, step_size=16)
        num_cached.append(warm.num_cached_tokens)
        np.testing.assert_allclose(finish(placing, warm), fresh(prompt), atol=2e-3)
        cache.insert(prompt.keys[:-1], begin_and_step(placing, prompt, len(prompt) - 1))
    assert min(num_cached[1:2] + num_cached[3:4] + num_cached[5:]) > 0, "texts start warm"


def test_prompts_whose_chunks_alternate_are_placed_each_by_itself(
    placing: LoadedModel, fresh: Fresh
) -> None:
    prompts = [
        picture_prompt(placing, "red", 96),
        text_prompt(placing, LONG),
        with_images(placing),
    ]
    prefills = [begin(placing, p, step_size=7, uid=uid) for uid, p in enumerate(prompts)]
    batch, firsts = RowBatch(placing.language_model), {}
    while len(firsts) < len(prefills):
        for prefill in prefills:
            if not prefill.is_within(None):
                prefill.step()
            elif prefill.uid not in firsts:
                firsts[prefill.uid] = join(placing, batch, prefill)
    seconds = dict(zip(batch.uids, decode(placing, batch), strict=True))
    for uid, prompt in enumerate(prompts):
        np.testing.assert_allclose([firsts[uid], seconds[uid]], fresh(prompt), atol=2e-3)


def test_a_row_that_decodes_alone_goes_on_where_it_was_while_others_begin(
    placing: LoadedModel, fresh: Fresh
) -> None:
    pictured, text = picture_prompt(placing, "red", 96), text_prompt(placing, LONG)
    for prompt, other in ((pictured, text), (text, pictured), (pictured, with_images(placing))):
        batch = RowBatch(placing.language_model)
        prefill = begin(placing, prompt)
        while not prefill.is_within(None):
            prefill.step()
        first = join(placing, batch, prefill)
        begin(placing, other, step_size=7).step()
        both = [first, *decode(placing, batch)]
        np.testing.assert_allclose(both, fresh(prompt), atol=2e-3)


def test_the_last_piece_is_left_for_the_batch(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    prompt = prepare(loaded, RawPrompt("abcdefghij"), [])
    prefill = begin(loaded, prompt, step_size=4)
    done = []
    while not prefill.is_within(None):
        prefill.step()
        done.append(prefill.num_done)
        assert {cache.offset for cache in prefill.caches} == {prefill.num_done}
    assert done == [4, 8]


def test_a_prompt_of_one_token_needs_no_step(load_tiny: Load) -> None:
    loaded = load_tiny("llama")
    assert begin(loaded, prepare(loaded, RawPrompt((5,)), [])).is_within(None)


def test_chunks_end_at_the_checkpoints_and_leave_copies_there(load_tiny: Load) -> None:
    loaded = load_tiny("qwen3_next")
    prompt = prepare(loaded, ChatPrompt((system("be a box"), user(3 * LONG))), [])
    places = (50, 120, len(prompt) - 1)
    assert places[-1] > 121 + 48
    near = (5, 51, 97, 121)  # too near to what is kept before them
    prompt = replace(prompt, checkpoints=tuple(sorted((*places, *near))))
    cache = PrefixCache(PLENTY)
    prefill = begin(loaded, prompt, cache, step_size=16)
    done = []
    while not prefill.is_within(None):
        prefill.step()
        done.append(prefill.num_done)
    assert [n for n in done if n in prompt.checkpoints] == list(places)
    assert max(np.diff([0, *done])) <= 16
    finish(loaded, prefill)
    assert len(cache) == 3
    for place in places:
        other = np.concatenate([prompt.keys[:place], [1, 1]])
        match = cache.match(other)
        assert match is not None
        assert match.num_tokens == place
        assert match.caches[3].offset == place


def test_a_checkpoint_that_was_met_before_is_not_run_again(load_tiny: Load) -> None:
    loaded = load_tiny("qwen3_next")
    prompt = prepare(loaded, ChatPrompt((user(LONG),)), [])
    cache = PrefixCache(PLENTY)
    finish(loaded, begin(loaded, prompt, cache))
    again = begin(loaded, prompt, cache)
    assert again.num_cached_tokens == len(prompt) - 1
    assert again.is_within(None)


@pytest.mark.parametrize("name", VISION)
def test_families_not_known_to_begin_behind_a_picture_start_cold(
    load_tiny: Load, name: str
) -> None:
    loaded = load_tiny(name)
    prompt = with_images(loaded)
    cache = PrefixCache(PLENTY)
    finish(loaded, begin(loaded, prompt, cache))
    first = begin(loaded, prompt, step_size=9)
    first.step()
    cache.insert(prompt.keys[:9], first.caches)
    stranger = replace(loaded, model_type="other")
    assert begin(stranger, prompt, cache).num_cached_tokens == 0
    text = prepare(loaded, ChatPrompt((user("what is it?"),)), [])
    finish(loaded, begin(loaded, text, cache))
    cache.insert(text.keys[:9], begin_and_step(loaded, text, 9))
    assert begin(stranger, text, cache).num_cached_tokens > 0


def begin_and_step(loaded: LoadedModel, prompt: PreparedPrompt, num: int) -> list[object]:
    prefill = begin(loaded, prompt, step_size=num)
    prefill.step()
    return prefill.caches


@pytest.mark.parametrize("name", VISION)
def test_the_vision_tower_runs_only_for_pictures_that_are_not_cached(
    load_tiny: Load, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_tiny(name)
    prompt = with_images(loaded)
    cache = PrefixCache(PLENTY)
    last_image_token = max(
        i for i, token in enumerate(prompt.token_ids) if token == loaded.image_token_id
    )
    state = begin_and_step(loaded, prompt, last_image_token + 1)
    cache.insert(prompt.keys[: last_image_token + 1], state)
    seen: list[object] = []
    embed = type(loaded.model).get_input_embeddings

    def watch(self: object, ids: mx.array, pixels: object = None, **kwargs: object) -> object:
        seen.append(pixels)
        return embed(self, ids, pixels, **kwargs)

    monkeypatch.setattr(type(loaded.model), "get_input_embeddings", watch)
    begin(loaded, prompt, cache)
    assert seen == [None]
    begin(loaded, prompt)
    assert seen[1] is not None


def test_models_that_must_see_the_prompt_whole_get_it_in_one_piece(tmp_path: Path) -> None:
    path = write_scripted_checkpoint(tmp_path / "m")
    loaded = ScriptedLoader(m=Script())("m", path, EngineConfig())
    loaded.language_model.no_chunked_prefill = True
    prompt = prepare(loaded, RawPrompt("abcdefghij"), [])
    cache = PrefixCache(PLENTY)
    prefill = begin(loaded, prompt, cache, step_size=4)
    assert prefill.is_within(None), "the batch runs all of it"
    finish(loaded, prefill)
    cache.insert(prompt.keys[:5], loaded.make_caches())
    assert begin(loaded, prompt, cache).num_cached_tokens == 0
