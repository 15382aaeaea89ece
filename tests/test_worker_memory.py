"""A model that is too large for the memory is no end of the one that is loaded."""

from __future__ import annotations

from pathlib import Path

from mlx_server.config import EngineConfig
from mlx_server.errors import ModelTooLarge
from tests.scripted import Script, write_weight_header
from tests.worker_harness import ask, running_worker


def test_b128_a_model_that_cannot_fit_leaves_the_loaded_one_at_work(
    tmp_path: Path,
) -> None:
    script, other = Script(), Script()
    script.say("fine")
    other.say("it fits")
    config = EngineConfig(memory_limit_bytes=2 << 30, prefill_step_size=4)
    with running_worker(tmp_path, config=config, a=script, b=other) as harness:
        assert harness.run(ask()) == "fine"
        weights = harness.paths["b"] / "model.safetensors"
        write_weight_header(weights, 3 << 30)
        refused = harness.run(ask(model="b"))
        assert isinstance(refused, ModelTooLarge)
        assert harness.worker.status.load_error == refused.message
        assert harness.worker.status.model == "a"
        assert harness.run(ask()) == "fine"
        assert harness.loader.loads == ["a"]
        write_weight_header(weights, 1 << 30)
        assert harness.run(ask(model="b")) == "it fits"
