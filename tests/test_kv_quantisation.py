"""KV state in few bits: in the batch, with the prefix cache, and refused where it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlx_vlm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from mlx_server.config import EngineConfig, KVQuantisation
from mlx_server.engine.device import prepare_device
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import load_checkpoint
from mlx_server.engine.sequence import ChatPrompt
from mlx_server.errors import ModelLoadFailed
from tests.engine_runs import (
    assistant,
    make_runner,
    make_sequence,
    run,
    run_alone,
    run_together,
    user,
)
from tests.tiny.checkpoints import tiny_gemma3, tiny_llama, tiny_qwen3_next

LONG = "tell me everything that you know of the sea, the wind and the ships, " * 2
WRITERS: dict[str, Callable[..., Path]] = {"llama": tiny_llama, "gemma3": tiny_gemma3}


def load(path: Path, wanted: KVQuantisation) -> LoadedModel:
    prepare_device()
    return load_checkpoint("m", path, EngineConfig(kv_quantisation=wanted))


@pytest.fixture(scope="module", params=[("llama", 8), ("llama", 4), ("gemma3", 8)], ids=str)
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LoadedModel]:
    name, bits = request.param
    folder = tmp_path_factory.mktemp("kv") / name
    yield load(WRITERS[name](folder, head_dim=64), KVQuantisation(bits, start=24))


def kinds(loaded: LoadedModel, num_prompt_tokens: int) -> list[type]:
    return [type(c) for c in loaded.make_caches(loaded.kv_variant(num_prompt_tokens))]


def test_full_attention_layers_but_the_last_are_quantised(loaded: LoadedModel) -> None:
    kept = RotatingKVCache if loaded.model_type == "gemma3" else QuantizedKVCache
    assert kinds(loaded, 24) == [kept, QuantizedKVCache, kept, KVCache]
    assert QuantizedKVCache not in kinds(loaded, 23)


def test_rows_of_both_kinds_decode_together_as_alone(loaded: LoadedModel) -> None:
    sequences = [make_sequence(text) for text in ("hi", LONG, "a red box", LONG + "more")]
    runner = make_runner(loaded, step_size=16)
    answers = run_together(runner, sequences)
    for sequence, answer in answers.items():
        alone = run_alone(loaded, make_sequence(sequence.request.prompt))
        assert answer.text == alone.text
        assert answer.finish_reason == alone.finish_reason


def test_the_next_turn_starts_from_the_quantised_state(loaded: LoadedModel) -> None:
    runner = make_runner(loaded, step_size=16)
    first = run(runner, make_sequence(LONG))
    turns = ChatPrompt((user(LONG), assistant(first.text), user("and then?")))
    warm = run(runner, make_sequence(turns))
    assert warm.num_cached_tokens > 24
    assert warm.text == run_alone(loaded, make_sequence(turns)).text


def test_exact_and_quantised_state_are_not_mixed(loaded: LoadedModel) -> None:
    runner = make_runner(loaded)
    short = make_sequence("hi", max_tokens=2)
    run(runner, short)
    longer = make_sequence(ChatPrompt((user("hi"), assistant("yes"), user(LONG))))
    assert run(runner, longer).num_cached_tokens == 0


def test_quantised_state_is_smaller(tmp_path: Path) -> None:
    path = tiny_llama(tmp_path / "llama", head_dim=64)
    sizes = []
    for wanted in (KVQuantisation(4), KVQuantisation(4, start=10_000)):
        runner = make_runner(load(path, wanted))
        run(runner, make_sequence(LONG))
        sizes.append(runner.prefix_cache.num_bytes)
    # three of four layers, at 4 bits and a scale and a bias of 32 bits for 64 values
    assert sizes[0] < 0.5 * sizes[1]


@pytest.mark.parametrize(
    ("write", "head_dim", "reason"),
    [
        (tiny_llama, {}, "--kv-group-size"),
        (tiny_qwen3_next, {}, "no full-attention layers"),
    ],
)
def test_what_cannot_be_quantised_is_refused_at_the_load(
    write: Callable[..., Path], head_dim: dict[str, int], reason: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "m", **head_dim)
    with pytest.raises(ModelLoadFailed, match=reason):
        load(path, KVQuantisation(8))
