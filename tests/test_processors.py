"""A checkpoint's tokenizer is read once, until its files change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from mlx_server.engine.processors import MAX_KEPT, Processors
from tests.tiny.checkpoints import tiny_llama

MODEL = SimpleNamespace(config=SimpleNamespace(eos_token_id=[2]))


def get(processors: Processors, path: Path) -> object:
    return processors.get(path, MODEL, trust_remote_code=False).processor


def test_the_second_load_of_a_checkpoint_reads_no_tokenizer(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    processors = Processors()
    first = get(processors, tiny_checkpoint("llama"))
    assert get(processors, tiny_checkpoint("gemma3")) is not first
    assert get(processors, tiny_checkpoint("llama")) is first


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    processors = Processors()
    path = tiny_llama(tmp_path / "llama")
    first = get(processors, path)
    config = path / "tokenizer_config.json"
    config.write_text(config.read_text() + " ")
    assert get(processors, path) is not first


def test_only_the_last_few_are_kept(tiny_checkpoint: Callable[[str], Path]) -> None:
    processors = Processors()
    first = get(processors, tiny_checkpoint("llama"))
    names = ("gemma3", "gemma3_window_8", "qwen3_next", "qwen3_vl")
    assert len(names) == MAX_KEPT
    for name in names:
        get(processors, tiny_checkpoint(name))
    assert get(processors, tiny_checkpoint("llama")) is not first
