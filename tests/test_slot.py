"""One model at a time, and nothing of it left when it goes."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlx_server.config import MIB, EngineConfig, KVQuantisation
from mlx_server.engine.device import is_cpu
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import Load, load_checkpoint
from mlx_server.engine.sequence import ChatPrompt, RawPrompt
from mlx_server.engine.slot import MAX_REASON, ModelSlot, describe
from mlx_server.errors import GIB, ModelLoadFailed, ModelTooLarge, ServerError
from tests.engine_runs import make_sequence, picture, run, user
from tests.scripted import (
    Script,
    ScriptedLoader,
    write_scripted_checkpoint,
    write_weight_header,
)
from tests.tiny.checkpoints import tiny_llama

Checkpoint = Callable[[str], Path]
NUM_SWAPS = 10


def make_slot(load: Load = load_checkpoint, **config: Any) -> ModelSlot:
    return ModelSlot(EngineConfig(**config), load)


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    return {name: write_scripted_checkpoint(tmp_path / name) for name in "ab"}


def test_the_slot_holds_what_was_loaded_last(paths: dict[str, Path]) -> None:
    load = ScriptedLoader(a=Script(), b=Script())
    slot = make_slot(load)
    assert (slot.model_id, slot.runner) == (None, None)
    for name in ("a", "b", "a"):
        slot.swap(name, paths[name])
        assert slot.model_id == name
        assert slot.runner is not None
        assert slot.runner.loaded.id == name
    assert load.loads == ["a", "b", "a"]
    slot.unload()
    assert (slot.model_id, slot.runner) == (None, None)
    slot.unload()


def test_a_model_s_state_does_not_meet_another_model(paths: dict[str, Path]) -> None:
    slot = make_slot(ScriptedLoader(a=Script(), b=Script()))
    for name in ("a", "b", "a"):
        slot.swap(name, paths[name])
        assert slot.runner is not None
        assert run(slot.runner, make_sequence(RawPrompt("abc"))).num_cached_tokens == 0


def test_the_old_model_is_gone_before_the_new_one_is_loaded(paths: dict[str, Path]) -> None:
    inner = ScriptedLoader(a=Script(), b=Script())
    models: list[weakref.ref[Any]] = []

    def load(model_id: str, path: Path, config: EngineConfig) -> LoadedModel:
        assert all(model() is None for model in models), "two models in memory"
        loaded = inner(model_id, path, config)
        models.append(weakref.ref(loaded.model))
        return loaded

    slot = make_slot(load)
    for name in ("a", "b", "a"):
        slot.swap(name, paths[name])
        assert slot.runner is not None
        run(slot.runner, make_sequence(RawPrompt("abc")))
    assert len(models) == 3


@pytest.mark.parametrize(
    "error", [ValueError("Missing 2 parameters: x, y"), RuntimeError(), KeyError("k")]
)
def test_a_broken_checkpoint_is_told_with_its_reason_and_leaves_an_empty_slot(
    paths: dict[str, Path], error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    slot = make_slot(ScriptedLoader(a=Script(), b=Script(load_error=error)))
    slot.swap("a", paths["a"])
    with caplog.at_level(logging.CRITICAL), pytest.raises(ModelLoadFailed) as raised:
        slot.swap("b", paths["b"])
    assert type(error).__name__ in raised.value.message
    assert slot.model_id is None
    slot.swap("a", paths["a"])
    assert slot.model_id == "a"


def test_a_refusal_of_our_own_passes_as_it_is(paths: dict[str, Path]) -> None:
    refusal = ModelLoadFailed("The model's checkpoint brings Python code of its own.")
    slot = make_slot(ScriptedLoader(a=Script(load_error=refusal)))
    with pytest.raises(ServerError) as raised:
        slot.swap("a", paths["a"])
    assert raised.value is refusal
    assert slot.model_id is None


def test_b120_a_folder_that_is_no_checkpoint_is_a_failed_load(tmp_path: Path) -> None:
    slot = make_slot()
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ModelLoadFailed) as raised:
            slot.swap("m", path)
        assert str(tmp_path) not in raised.value.message


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 1000),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"not json"),
        ("config.json", b'{"model_type": "llama"}'),
        ("config.json", b'{"model_type": "unheard_of"}'),
        ("config.json", b"[]"),
    ],
)
def test_damaged_files_are_a_failed_load_whatever_the_loader_raises(
    tiny_checkpoint: Checkpoint,
    tmp_path: Path,
    file: str,
    content: bytes,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for path in tiny_checkpoint("llama").iterdir():
        (folder / path.name).write_bytes(content if path.name == file else path.read_bytes())
    slot = make_slot()
    with caplog.at_level(logging.CRITICAL), pytest.raises(ModelLoadFailed) as raised:
        slot.swap("m", folder)
    assert str(tmp_path) not in raised.value.message
    assert len(raised.value.message) < MAX_REASON + 100
    slot.swap("m", tiny_checkpoint("llama"))
    assert slot.model_id == "m"


def test_reasons_are_one_line_without_paths_of_this_machine() -> None:
    path = Path("/srv/models/x")
    error = ValueError("cannot open /srv/models/x/a.safetensors\nTraceback: secret")
    assert describe(error, path) == "ValueError: cannot open the checkpoint/a.safetensors"
    cached = OSError("[Errno 13] denied: '/home/ann/.cache/huggingface/hub/blobs/abc'")
    assert "/home" not in describe(cached, path)
    assert "denied" in describe(cached, path)
    assert describe(RuntimeError(), path) == "RuntimeError"
    assert len(describe(ValueError("x" * 10_000), path)) < MAX_REASON + 20
    keep = ValueError("shapes (3/4) and/or 1/2 differ for layers.0/weight")
    assert describe(keep, path) == f"ValueError: {keep}"


def test_the_prefix_cache_has_the_bytes_that_were_set(paths: dict[str, Path]) -> None:
    slot = make_slot(ScriptedLoader(a=Script()), prefix_cache_bytes=12345)
    slot.swap("a", paths["a"])
    assert slot.runner is not None
    assert slot.runner.prefix_cache.max_bytes == 12345
    by_machine = make_slot(ScriptedLoader(a=Script()))
    by_machine.swap("a", paths["a"])
    assert by_machine.runner is not None
    assert by_machine.runner.prefix_cache.max_bytes > 1 << 28


def test_b128_the_prefix_cache_stays_below_a_limit_of_the_user(paths: dict[str, Path]) -> None:
    for config in ({}, {"prefix_cache_bytes": GIB}):
        slot = make_slot(ScriptedLoader(a=Script()), memory_limit_bytes=40 << 20, **config)
        slot.swap("a", paths["a"])
        assert slot.runner is not None
        assert 1 << 20 < slot.runner.prefix_cache.max_bytes <= 40 << 20


def test_b128_a_model_that_cannot_fit_is_refused_while_the_old_one_stays(
    paths: dict[str, Path],
) -> None:
    load = ScriptedLoader(a=Script(), b=Script())
    slot = make_slot(load, memory_limit_bytes=2 * GIB)
    slot.swap("a", paths["a"])
    before = slot.runner
    assert before is not None
    memory = before.memory
    write_weight_header(paths["b"] / "model.safetensors", 3 * GIB)
    with pytest.raises(ModelTooLarge) as raised:
        slot.swap("b", paths["b"])
    assert raised.value.code == "insufficient_memory"
    assert "3.0" in raised.value.message
    assert "2.00 GiB" in raised.value.message
    assert "--memory-limit-gb" in raised.value.message
    assert load.loads == ["a"]
    assert slot.runner is before
    assert before.memory is memory
    write_weight_header(paths["b"] / "model.safetensors", GIB)
    slot.swap("b", paths["b"])
    assert slot.model_id == "b"


def test_heads_that_cannot_be_quantised_cost_nobody_the_loaded_model(
    tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    slot = make_slot(kv_quantisation=KVQuantisation(8))
    slot.swap("wide", tiny_llama(tmp_path / "wide", head_dim=64))
    with pytest.raises(ModelLoadFailed, match="--kv-group-size"):
        slot.swap("narrow", tiny_checkpoint("llama"))
    assert slot.model_id == "wide"


def test_a_limit_of_nothing_holds_no_model(tiny_checkpoint: Checkpoint) -> None:
    with pytest.raises(ModelTooLarge):
        make_slot(memory_limit_bytes=0).swap("m", tiny_checkpoint("llama"))


def test_a_short_conversation_fits_beside_every_model_that_is_loaded(
    tiny_checkpoint: Checkpoint, tiny_name: str
) -> None:
    """Just enough for the load to be allowed is enough for an answer as well."""
    path = tiny_checkpoint(tiny_name)
    with pytest.raises(ModelTooLarge):
        make_slot(memory_limit_bytes=MIB).swap("m", path)
    allowed = next(limit for limit in range(MIB, 64 * MIB, MIB // 4) if is_allowed(path, limit))
    slot = make_slot(memory_limit_bytes=allowed)
    slot.swap("m", path)
    assert slot.runner is not None
    assert 256 <= slot.runner.memory.max_total_tokens() < 4096


def test_kv_state_that_waits_for_the_disk_has_its_room(
    tmp_path: Path, tiny_checkpoint: Checkpoint
) -> None:
    room = {}
    for where in (None, tmp_path / "kv"):
        slot = make_slot(memory_limit_bytes=64 * MIB, prefix_cache_dir=where)
        slot.swap("m", tiny_checkpoint("llama"))
        assert slot.runner is not None
        room[where] = slot.runner.memory.room_for_prefix_cache()
    assert room[None] - room[tmp_path / "kv"] == 4 * MIB


def is_allowed(path: Path, limit: int) -> bool:
    try:
        make_slot(refuse_to_load, memory_limit_bytes=limit).swap("m", path)
    except ModelTooLarge:
        return False
    except ModelLoadFailed:
        return True
    raise AssertionError("it cannot be loaded")


def refuse_to_load(model_id: str, path: Path, config: EngineConfig) -> LoadedModel:
    raise ModelLoadFailed("This loader loads nothing.")


def test_b117_nothing_of_a_model_is_left_after_a_swap(tiny_checkpoint: Checkpoint) -> None:
    slot = make_slot(prefill_step_size=16)
    names = ("llama", "qwen3_vl", "qwen3_next", "gemma3")
    last: list[weakref.ref[Any]] = []
    memory: dict[str, int] = {}
    for i in range(NUM_SWAPS):
        name = names[i % len(names)]
        slot.swap(name, tiny_checkpoint(name))
        assert all(model() is None for model in last), "the model before is still in memory"
        assert slot.runner is not None
        last = [weakref.ref(slot.runner.loaded.model), weakref.ref(slot.runner)]
        loaded = memory.setdefault(name, mx.get_active_memory())
        assert mx.get_active_memory() <= 1.02 * loaded
        images = [picture("red")] if slot.runner.loaded.has_vision else []
        prompt = ChatPrompt((user("abc" * 20, len(images)),))
        run(slot.runner, make_sequence(prompt, images))
    slot.unload()
    gc.collect()
    assert all(model() is None for model in last)


PROMPT = RawPrompt("a prompt of some length, so that it fills more than one block on the disk")


def num_cached(slot: ModelSlot, name: str, path: Path) -> int:
    slot.swap(name, path)
    assert slot.runner is not None
    return run(slot.runner, make_sequence(PROMPT, max_tokens=2)).num_cached_tokens


def test_state_on_disk_outlives_swaps_and_restarts_and_serves_no_other_checkpoint(
    paths: dict[str, Path], tmp_path: Path
) -> None:
    def new_slot(**config: Any) -> ModelSlot:
        folder = tmp_path / "kv"
        loader = ScriptedLoader(a=Script(), b=Script())
        return make_slot(loader, prefix_cache_dir=folder, **config)

    config = paths["b"] / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "other": 1}))
    slot = new_slot()
    assert [num_cached(slot, name, paths[name]) for name in "abab"] == [0, 0, 64, 64]
    slot.unload()
    assert num_cached(new_slot(), "a", paths["a"]) == 64
    assert num_cached(new_slot(cpu_dtype="bfloat16"), "a", paths["a"]) == (0 if is_cpu() else 64)
    copied = shutil.copytree(paths["a"], tmp_path / "copy" / "a")
    assert num_cached(new_slot(), "a", copied) == 64
    changed = copied / "config.json"
    changed.write_text(json.dumps({**json.loads(changed.read_text()), "other": 2}))
    assert num_cached(new_slot(), "a", copied) == 0


def test_without_a_folder_nothing_is_on_disk(paths: dict[str, Path]) -> None:
    slot = make_slot(ScriptedLoader(a=Script()))
    assert [num_cached(slot, "a", paths["a"]) for _ in range(2)] == [0, 0]
    assert slot.runner is not None
    assert slot.runner.prefix_cache.stats().max_disk_bytes == 0


def test_an_unloaded_model_is_written_to_disk(paths: dict[str, Path], tmp_path: Path) -> None:
    slot = make_slot(ScriptedLoader(a=Script()), prefix_cache_dir=tmp_path / "kv")
    num_cached(slot, "a", paths["a"])
    slot.unload()
    assert len(list((tmp_path / "kv").rglob("*.safetensors"))) == 2


def test_clearing_forgets_the_state_of_all_models(paths: dict[str, Path], tmp_path: Path) -> None:
    loader = ScriptedLoader(a=Script(), b=Script())
    slot = make_slot(loader, prefix_cache_dir=tmp_path / "kv")
    for name in "ab":
        num_cached(slot, name, paths[name])
    slot.clear_prefix_cache()
    assert list((tmp_path / "kv").rglob("*.safetensors")) == []
    assert [num_cached(slot, name, paths[name]) for name in "ba"] == [0, 0]


def test_a_load_that_is_refused_late_keeps_nothing(paths: dict[str, Path]) -> None:
    models: list[weakref.ref[Any]] = []
    inner = ScriptedLoader(a=Script())

    def load(model_id: str, path: Path, config: EngineConfig) -> LoadedModel:
        loaded = inner(model_id, path, config)
        models.append(weakref.ref(loaded.model))
        raise ModelLoadFailed("too late")

    slot = make_slot(load)
    with pytest.raises(ModelLoadFailed) as caught:
        slot.swap("a", paths["a"])
    assert [model() for model in models] == [None], caught
