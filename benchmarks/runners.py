"""A runner in this process, with all the memory that it may want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_server.engine.runner import Runner


def make_runner(loaded: Any, *, prefix_cache_bytes: int) -> Runner:
    from mlx_server.engine.device import prefill_step_size
    from mlx_server.engine.kv_cost import KVCost
    from mlx_server.engine.memory import KVMemory, Scratch
    from mlx_server.engine.prefix_cache import PrefixCache
    from mlx_server.engine.runner import Runner
    from mlx_server.model_dimensions import ModelDimensions

    memory = KVMemory(
        limit_bytes=1 << 50,
        weight_bytes=0,
        cost=KVCost(()),
        scratch=Scratch(ModelDimensions.of_config(loaded.model.config), 1, False),
        context_length=loaded.context_length,
    )
    return Runner(
        loaded,
        prefill_step_size=prefill_step_size(),
        prefix_cache=PrefixCache(prefix_cache_bytes),
        memory=memory,
    )
