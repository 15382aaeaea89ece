"""Brings MLX into the process and sets up the worker that will own it.

To import this module costs nothing, to call it takes seconds: not for the event loop's thread.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlx_server.config import EngineConfig
from mlx_server.engine.scheduler import Scheduler

if TYPE_CHECKING:
    from mlx_server.engine.loader import Load
    from mlx_server.engine.worker import Post, Worker

logger = logging.getLogger(__name__)


def open_worker(
    config: EngineConfig, load: Load | None, *, locate: Callable[[str], Path], post: Post
) -> Worker:
    """A worker that has not been started; `load` is `load_checkpoint` unless it is given."""
    import_mlx()
    from mlx_server.engine.loader import load_checkpoint
    from mlx_server.engine.processors import Processors
    from mlx_server.engine.slot import ModelSlot
    from mlx_server.engine.worker import Worker

    slot = ModelSlot(config, load or partial(load_checkpoint, processors=Processors()))
    scheduler = Scheduler(
        slot,
        max_num_seqs=config.max_num_seqs,
        max_decode_stall_s=config.max_decode_stall_s,
        swap_patience_s=config.swap_patience_s,
    )
    return Worker(slot, scheduler, locate=locate, post=post)


def import_mlx() -> None:
    if "mlx.core" in sys.modules:
        return
    # the fast BLAS must be in the process before MLX is
    from mlx_server.engine.blas import preload_blas

    if blas := preload_blas():
        logger.info("BLAS: %s", blas)
    import mlx_server.engine.worker  # noqa: F401

    # What has been imported stays: searching it for garbage would make every swap slower.
    gc.freeze()
