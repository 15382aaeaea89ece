"""What the engine knows of a model once it is loaded."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_vlm.models.cache import ChunkedKVCache, KVCache

from mlx_server.config import EngineConfig
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import load_checkpoint
from tests.scripted import (
    Script,
    ScriptedLanguageModel,
    ScriptedLoader,
    write_scripted_checkpoint,
)


def test_rows_of_every_tiny_family_decode_together(family: LoadedModel) -> None:
    assert family.can_batch


def test_a_model_with_a_cache_that_takes_no_rows_decodes_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_cache(self: ScriptedLanguageModel) -> list[object]:
        return [ChunkedKVCache(8), KVCache()]

    monkeypatch.setattr(ScriptedLanguageModel, "make_cache", make_cache)
    path = write_scripted_checkpoint(tmp_path / "m")
    loaded = ScriptedLoader(m=Script())("m", path, EngineConfig())
    assert not loaded.can_batch
    assert loaded.needs_checkpoints


def test_a_load_leaves_no_random_numbers_to_be_drawn(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    """They would pile up with every swap."""
    load_checkpoint("m", tiny_checkpoint("llama"), EngineConfig())
    graph = io.StringIO()
    mx.export_to_dot(graph, mx.random.state[0])
    assert "Split" not in graph.getvalue()
