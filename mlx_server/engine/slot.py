"""The one place in memory for a model. Once it is made, only the MLX thread touches it."""

from __future__ import annotations

import gc
import logging
import re
import time
from pathlib import Path

import mlx.core as mx

from mlx_server.checkpoint import CheckpointFacts, refuse_remote_code
from mlx_server.checkpoint_files import fingerprint
from mlx_server.config import EngineConfig
from mlx_server.engine.device import (
    cpu_float_bytes,
    default_memory_limit,
    has_fused_attention,
    is_cpu,
    limit_memory,
    prefill_step_size,
)
from mlx_server.engine.disk_store import DiskStore
from mlx_server.engine.disk_tier import DiskTier, namespace
from mlx_server.engine.kv_cost import measure_kv_cost
from mlx_server.engine.kv_folder import KVFolder
from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.loader import Load, num_weight_bytes
from mlx_server.engine.machine_memory import give_back_freed
from mlx_server.engine.memory import FLOAT32_BYTES, KVMemory, Scratch
from mlx_server.engine.prefix_cache import PrefixCache
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import Sequence
from mlx_server.errors import ModelLoadFailed, ModelTooLarge, ServerError
from mlx_server.kv_heads import refuse_heads_that_no_group_divides
from mlx_server.load_cost import LoadCost
from mlx_server.model_dimensions import ModelDimensions

logger = logging.getLogger(__name__)

PREFIX_CACHE_SHARE = 0.25
# What may wait for the disk: at most so much, and this share of the limit.
MAX_QUEUED_BYTES = 1 << 30
QUEUE_SHARE = 1 / 16
SHORT_CONVERSATION = 1024
HALF_BYTES = 2
FLUSH_TIMEOUT_S = 4.0
MAX_REASON = 200
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:[^\s'\":,;()]+/)+[^\s'\":,;()]*")


class ModelSlot:
    """Holds the runner of the loaded model, or nothing; the scheduler's `Workload`."""

    def __init__(self, config: EngineConfig, load: Load) -> None:
        self._config = config
        self._load = load
        limit = config.memory_limit_bytes
        whole_limit = default_memory_limit() if limit is None else limit
        queue_bytes = min(MAX_QUEUED_BYTES, int(QUEUE_SHARE * whole_limit))
        self._disk = disk_store(config, queue_bytes)
        # KV state that waits for the disk is in nobody's books
        self._memory_limit = whole_limit - (queue_bytes if self._disk else 0)
        self._prefill_step_size = config.prefill_step_size or prefill_step_size()
        self.runner: Runner | None = None
        limit_memory(whole_limit)

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
        assert self.runner is not None
        return self.runner.reserve(sequence)

    def swap(self, model_id: str, path: Path) -> None:
        """Give back the memory of what is loaded, then load. The slot is empty if that fails.

        Raises ModelLoadFailed with the reason, whatever the checkpoint made the loader raise; what
        can be told without loading costs nobody the loaded model.
        """
        refuse_remote_code(CheckpointFacts.read(path), self._config.trust_remote_code)
        dimensions = ModelDimensions.read(path)
        if self._config.kv_quantisation is not None:
            refuse_heads_that_no_group_divides(dimensions, self._config.kv_quantisation)
        self._refuse_what_cannot_fit(path, dimensions)
        self.unload()
        began = time.monotonic()
        loaded, memory = self._load_model(model_id, path)
        self.runner = Runner(
            loaded,
            prefill_step_size=self._prefill_step_size,
            prefix_cache=PrefixCache(self._prefix_cache_bytes(), self._disk_tier(path)),
            memory=memory,
        )
        # before the load it would cost the pages that the weights go into
        give_back_freed()
        logger.info(
            "loaded %s in %.1f s: %.0f MB of weights, and room for %d tokens beside them",
            model_id,
            time.monotonic() - began,
            num_weight_bytes(loaded.model) / 1e6,
            memory.max_total_tokens(),
        )

    def _load_model(self, model_id: str, path: Path) -> tuple[LoadedModel, KVMemory]:
        loaded = None
        try:
            loaded = self._load(model_id, path, self._config)
            return loaded, self._memory_beside(loaded)
        except ServerError as error:
            failure = error
        except Exception as error:
            logger.exception("loading %s failed", model_id)
            reason = describe(error, path)
            failure = ModelLoadFailed(f"The model's checkpoint cannot be loaded: {reason}")
            error.__traceback__ = None
        # it goes to those who wait, and tracebacks hold what was already loaded
        loaded, failure.__traceback__, failure.__context__ = None, None, None
        self._collect()
        give_back_freed()
        raise failure

    def unload(self) -> None:
        """Drop the model and its KV state; their memory is free for what comes next."""
        if self.runner is not None:
            logger.info("unloading %s", self.model_id)
            self.runner.prefix_cache.leave_to_disk()
            self.runner = None
        if self._disk is not None:
            # what is not written yet would hold the model's memory while the next one is loaded
            self._disk.flush(FLUSH_TIMEOUT_S)
        self._collect()

    def clear_prefix_cache(self) -> None:
        """Forget the KV state of all models, in memory and on disk."""
        if self.runner is not None:
            self.runner.clear_prefix_cache()
        if self._disk is not None:
            self._disk.clear()

    def _collect(self) -> None:
        # modules refer to each other in circles, so counting references does not free them
        gc.collect()
        mx.clear_cache()

    def _prefix_cache_bytes(self) -> int:
        if self._config.prefix_cache_bytes is not None:
            return self._config.prefix_cache_bytes
        return int(PREFIX_CACHE_SHARE * self._memory_limit)

    def _refuse_what_cannot_fit(self, path: Path, dimensions: ModelDimensions) -> None:
        """Raises ModelTooLarge where weights and a short conversation would pass the limit."""
        float_bytes = cpu_float_bytes(self._config.cpu_dtype)
        weights = LoadCost.read(path, float_bytes)
        kv_bytes = SHORT_CONVERSATION * dimensions.kv_numbers * (float_bytes or HALF_BYTES)
        # recurrent state is kept in single precision whatever the weights are
        kv_bytes += dimensions.state_numbers * FLOAT32_BYTES
        scratch_bytes = self._scratch(dimensions).bytes(SHORT_CONVERSATION, 1)
        running_bytes = weights.weight_bytes + kv_bytes + scratch_bytes
        needed_bytes = max(weights.peak_bytes, running_bytes)
        if needed_bytes > self._memory_limit:
            raise ModelTooLarge(needed_bytes, self._memory_limit)

    def _memory_beside(self, loaded: LoadedModel) -> KVMemory:
        return KVMemory(
            limit_bytes=self._memory_limit,
            weight_bytes=num_weight_bytes(loaded.model),
            cost=measure_kv_cost(loaded),
            scratch=self._scratch(ModelDimensions.of_config(loaded.model.config)),
            context_length=loaded.context_length,
        )

    def _scratch(self, dimensions: ModelDimensions) -> Scratch:
        return Scratch(
            dimensions,
            chunk=self._prefill_step_size,
            has_scores=not has_fused_attention(dimensions.head_dim),
        )

    def _disk_tier(self, path: Path) -> DiskTier | None:
        if self._disk is None:
            return None
        try:
            identity = fingerprint(path)
        except OSError:
            logger.warning("the checkpoint cannot be identified: its KV state stays in memory")
            return None
        dtype = self._config.cpu_dtype if is_cpu() else "checkpoint"
        return DiskTier(self._disk, namespace(identity, dtype))


def disk_store(config: EngineConfig, max_queued_bytes: int) -> DiskStore | None:
    if config.prefix_cache_dir is None:
        return None
    folder = KVFolder(config.prefix_cache_dir, config.prefix_cache_disk_bytes)
    return DiskStore(folder, max_queued_bytes=max_queued_bytes)


def describe(error: Exception, path: Path) -> str:
    """One line of what went wrong, without the machine's paths."""
    text = str(error).strip().splitlines()
    first = text[0] if text else ""
    first = ABSOLUTE_PATH.sub("a file", first.replace(str(path), "the checkpoint"))[:MAX_REASON]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
