"""Brings MLX into the process and sets up the worker that will own it.

To import this module costs nothing, to call it takes seconds: not for the event loop's thread.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
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
    from mlx_server.engine.slot import ModelSlot
    from mlx_server.engine.worker import Worker

    return Worker(ModelSlot(config, load or load_checkpoint), Scheduler(), locate=locate, post=post)


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
