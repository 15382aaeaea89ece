"""What the tests share: the fast BLAS, tiny checkpoints that are built and loaded once, scripts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mlx_server.engine.blas import preload_blas

# before anything imports MLX
preload_blas()

if TYPE_CHECKING:
    from mlx_server.engine.loaded_model import LoadedModel
    from tests.scripted import Script
    from tests.worker_harness import Harness


def pytest_collection_finish() -> None:
    """Models are unloaded often here, and each time the garbage is searched for in vain among all
    that the imports have made.
    """
    gc.collect()
    gc.freeze()


TINY_MODELS = ("llama", "gemma3", "gemma3_window_8", "qwen3_next", "qwen3_vl")
# more kinds of KV state and of positions
MORE_FAMILIES = ("falcon_h1", "qwen2_5_vl", "glm4v")


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the tiny checkpoint of that name, one of `TINY_MODELS`, `MORE_FAMILIES`,
    `HYBRIDS`, "hunyuan_vl" or "mllama"."""
    from tests.tiny import checkpoints
    from tests.tiny.hybrids import HYBRIDS, tiny_hybrid
    from tests.tiny.one_position import tiny_hunyuan_vl, tiny_mllama

    writers: dict[str, Callable[[Path], Path]] = {
        "llama": checkpoints.tiny_llama,
        "gemma3": checkpoints.tiny_gemma3,
        "gemma3_window_8": partial(checkpoints.tiny_gemma3, sliding_window=8),
        "qwen3_next": checkpoints.tiny_qwen3_next,
        "falcon_h1": checkpoints.tiny_falcon_h1,
        "qwen3_vl": checkpoints.tiny_qwen3_vl,
        "qwen2_5_vl": checkpoints.tiny_qwen2_5_vl,
        "glm4v": checkpoints.tiny_glm4v,
        "hunyuan_vl": tiny_hunyuan_vl,
        "mllama": tiny_mllama,
        **{name: partial(tiny_hybrid, family=name) for name in HYBRIDS},
    }
    root = tmp_path_factory.mktemp("tiny")
    return cache(lambda name: writers[name](root / name))


@pytest.fixture(scope="session")
def load_tiny(tiny_checkpoint: Callable[[str], Path]) -> Iterator[Callable[[str], LoadedModel]]:
    """The tiny model of that name, in memory; tests share it, so none may change its weights."""
    from mlx_server.config import EngineConfig
    from mlx_server.engine.device import prepare_device
    from mlx_server.engine.loader import load_checkpoint

    prepare_device()

    @cache
    def load(name: str) -> LoadedModel:
        return load_checkpoint(name, tiny_checkpoint(name), EngineConfig())

    yield load
    load.cache_clear()


@pytest.fixture(params=TINY_MODELS)
def tiny_name(request: pytest.FixtureRequest) -> str:
    """Every tiny model in turn."""
    return str(request.param)


@pytest.fixture
def tiny(tiny_name: str, load_tiny: Callable[[str], LoadedModel]) -> LoadedModel:
    return load_tiny(tiny_name)


@pytest.fixture(params=(*TINY_MODELS, *MORE_FAMILIES))
def family(request: pytest.FixtureRequest, load_tiny: Callable[[str], LoadedModel]) -> LoadedModel:
    """The tiny models and those of more families in turn."""
    return load_tiny(str(request.param))


@pytest.fixture
def script() -> Script:
    """What the scripted model says; nothing yet."""
    from tests.scripted import Script

    return Script()


@pytest.fixture
def other() -> Script:
    """What a second scripted model says."""
    from tests.scripted import Script

    return Script()


@pytest.fixture
def harness(script: Script, other: Script, tmp_path: Path) -> Iterator[Harness]:
    """A worker with two models, `a` and `b`, that runs one sequence at a time."""
    from tests.worker_harness import running_worker

    with running_worker(tmp_path, a=script, b=other) as harness:
        yield harness


@pytest.fixture
def pair(script: Script, tmp_path: Path) -> Iterator[Harness]:
    """A worker that runs two sequences together."""
    from tests.worker_harness import running_worker

    with running_worker(tmp_path, max_num_seqs=2, a=script) as harness:
        yield harness
