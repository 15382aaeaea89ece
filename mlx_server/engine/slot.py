"""The one place in memory for a model. Only the MLX thread touches it."""

from __future__ import annotations

import gc
import logging
import re
import time
from pathlib import Path

import mlx.core as mx

from mlx_server.checkpoint import CheckpointFacts, refuse_remote_code
from mlx_server.config import EngineConfig
from mlx_server.engine.device import memory_size, prefill_step_size
from mlx_server.engine.loader import Load, num_weight_bytes
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import Sequence
from mlx_server.errors import ModelLoadFailed, ServerError

logger = logging.getLogger(__name__)

PREFIX_CACHE_SHARE = 0.25
MAX_REASON = 200
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:[^\s'\":,;()]+/)+[^\s'\":,;()]*")


class ModelSlot:
    """Holds the runner of the loaded model, or nothing; the scheduler's `Workload`."""

    def __init__(self, config: EngineConfig, load: Load) -> None:
        self._config = config
        self._load = load
        self.runner: Runner | None = None

    @property
    def model_id(self) -> str | None:
        return self.runner.loaded.id if self.runner else None

    def num_left(self, sequence: Sequence) -> int:
        assert self.runner is not None
        return self.runner.num_left(sequence)

    def is_shared(self, sequence: Sequence, earlier: Sequence) -> bool:
        assert self.runner is not None
        return self.runner.is_shared(sequence, earlier)

    def reserve(self, sequence: Sequence) -> bool:
        return True

    def swap(self, model_id: str, path: Path) -> None:
        """Give back the memory of what is loaded, then load. The slot is empty if that fails.

        Raises ModelLoadFailed with the reason, whatever the checkpoint made the loader raise.
        """
        # what can be told without loading shall cost nobody the loaded model
        refuse_remote_code(CheckpointFacts.read(path), self._config.trust_remote_code)
        self.unload()
        began = time.monotonic()
        try:
            loaded = self._load(model_id, path, self._config)
        except ServerError:
            self._collect()
            raise
        except Exception as error:
            logger.exception("loading %s failed", model_id)
            reason = describe(error, path)
            # the traceback holds what was already loaded
            error.__traceback__ = None
            self._collect()
            raise ModelLoadFailed(f"The model's checkpoint cannot be loaded: {reason}") from None
        self.runner = Runner(
            loaded,
            prefill_step_size=self._config.prefill_step_size or prefill_step_size(),
            prefix_cache_bytes=self._prefix_cache_bytes(),
        )
        logger.info(
            "loaded %s in %.1f s: %.0f MB of weights",
            model_id,
            time.monotonic() - began,
            num_weight_bytes(loaded.model) / 1e6,
        )

    def unload(self) -> None:
        """Drop the model and its KV state, and return their memory to the system."""
        if self.runner is not None:
            logger.info("unloading %s", self.model_id)
            self.runner = None
        self._collect()

    def _collect(self) -> None:
        # modules refer to each other in circles, so counting references does not free them
        gc.collect()
        mx.clear_cache()

    def _prefix_cache_bytes(self) -> int:
        if self._config.prefix_cache_bytes is not None:
            return self._config.prefix_cache_bytes
        return int(PREFIX_CACHE_SHARE * memory_size())


def describe(error: Exception, path: Path) -> str:
    """One line of what went wrong, without the machine's paths."""
    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    first = ABSOLUTE_PATH.sub("a file", first.replace(str(path), "the checkpoint"))[:MAX_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
