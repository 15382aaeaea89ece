"""What differs between a CPU and an accelerator. Call `prepare_device` before a model runs."""

from __future__ import annotations

import logging
import os

import mlx.core as mx

from mlx_server.engine.machine_memory import available_bytes

logger = logging.getLogger(__name__)

CPU_PREFILL_STEP_SIZE = 128
ACCELERATOR_PREFILL_STEP_SIZE = 512
FUSED_HEAD_DIMS = (64, 80, 128)
RECOMMENDED = "max_recommended_working_set_size"
FREE_SHARE = 0.9
BUFFER_SHARE = 0.125


def is_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def prepare_device() -> None:
    """Fused kernels on a CPU need a C++ compiler at run time and make nothing faster."""
    if is_cpu():
        mx.disable_compile()


def prefill_step_size() -> int:
    """Tokens of one chunk: an abort waits for a chunk, and a CPU gains nothing by long ones."""
    return CPU_PREFILL_STEP_SIZE if is_cpu() else ACCELERATOR_PREFILL_STEP_SIZE


def cpu_float_bytes(cpu_dtype: str) -> int | None:
    """Size of a weight after the conversion for a CPU; None where weights stay as they are."""
    if not is_cpu() or cpu_dtype == "checkpoint":
        return None
    return int(getattr(mx, cpu_dtype).size)


def has_fused_attention(head_dim: int) -> bool:
    """Whether long prompts run without the scores of a whole chunk in memory."""
    return not is_cpu() and head_dim in FUSED_HEAD_DIMS


def default_memory_limit() -> int:
    """Bytes that MLX should not exceed: what the device recommends, else most of what is free."""
    info = mx.device_info()
    if RECOMMENDED in info:
        return int(info[RECOMMENDED])
    on_device = info.get("free_memory") or info.get("memory_size")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(FREE_SHARE * int(on_device or available_bytes() or machine))


def limit_memory(limit_bytes: int) -> None:
    """Have MLX itself keep to the limit on an accelerator; on a CPU it would not act on it.

    Weights stay wired up to the limit, or the system would page them out between requests.
    """
    if is_cpu():
        return
    mx.set_memory_limit(limit_bytes)
    # freed buffers are kept for others of their size, which KV state that grows never asks for
    buffers = int(BUFFER_SHARE * limit_bytes)
    mx.set_cache_limit(min(buffers, mx.set_cache_limit(buffers)))
    recommended = mx.device_info().get(RECOMMENDED)
    if recommended is not None:
        # more than what the system recommends is an error
        mx.set_wired_limit(min(limit_bytes, int(recommended)))


def active_memory_bytes() -> int:
    """What MLX holds now; any thread may ask."""
    return int(mx.get_active_memory())
