"""What differs between a CPU and an accelerator. Call `prepare_device` before a model runs."""

from __future__ import annotations

import logging
import os

import mlx.core as mx

logger = logging.getLogger(__name__)

CPU_PREFILL_STEP_SIZE = 128
ACCELERATOR_PREFILL_STEP_SIZE = 512


def is_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def prepare_device() -> None:
    """Fused kernels on a CPU need a C++ compiler at run time and make nothing faster."""
    if is_cpu():
        mx.disable_compile()


def prefill_step_size() -> int:
    """Tokens of one chunk: an abort waits for a chunk, and a CPU gains nothing by long ones."""
    return CPU_PREFILL_STEP_SIZE if is_cpu() else ACCELERATOR_PREFILL_STEP_SIZE


def memory_size() -> int:
    """Bytes of memory of the device; a CPU's is the machine's, of which MLX does not tell."""
    on_device = mx.device_info().get("memory_size")
    return int(on_device or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def active_memory_bytes() -> int:
    """What MLX holds now; any thread may ask."""
    return int(mx.get_active_memory())
