"""What the engine knows of a model once it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlx_vlm.models.cache import ChunkedKVCache, KVCache

from mlx_server.config import EngineConfig
from mlx_server.engine.loaded_model import LoadedModel
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
