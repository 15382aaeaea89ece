"""A fast BLAS in place of the reference one that MLX's CPU package is linked with.

The library that comes first in the process wins, so ours must be loaded before MLX is imported.
Of MLX this module knows no more than the names of its packages and the product that it calls.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

CUDA_PACKAGES = ("mlx-cuda-12", "mlx-cuda-13")
SYSTEM_LIBRARY = "libopenblas.so.0"
# mlx_vlm depends on it, and its wheels for Linux bring an OpenBLAS along.
BUNDLED_WITH = "opencv-python"

ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112

# Rows of a chunk of a prompt and of a decode step: libraries compute these in different ways.
CHUNK, STEP = 128, 1
NUM_OUTPUTS, NUM_INPUTS = 1536, 576

STEPS_PER_CHUNK = 16
NUM_TRIALS = 5
MAX_THREADS = 16
# More threads than help are a loss when other programs run, and every answer runs beside others.
WORTHWHILE_GAIN = 1.1

NO_LIBRARY = (
    "MLX's own, which makes prompts ten times slower; install OpenBLAS "
    "(on Debian: apt-get install libopenblas0-pthread)"
)
TOO_LATE = "MLX's own, because MLX was imported before a faster one could be loaded"

Matrix = npt.NDArray[np.float32]


def preload_blas() -> str | None:
    """Load a fast BLAS where MLX computes on a CPU; call it before MLX is imported.

    Returns what MLX will use, for the log, or None on an accelerator.
    """
    if sys.platform != "linux" or any(map(_is_installed, CUDA_PACKAGES)):
        return None
    if "mlx.core" in sys.modules and not hasattr(ctypes.CDLL(None), "cblas_sgemm"):
        return TOO_LATE
    names = (SYSTEM_LIBRARY, *_bundled_libraries())
    return next(filter(None, map(_load, names)), NO_LIBRARY)


def _load(name: str) -> str | None:
    """Give the library to everyone in the process, if there is one that computes rightly."""
    try:
        library = ctypes.CDLL(name)
        if not is_right(library):
            return None
        num_threads = best_num_threads(library)
        config = ctypes.string_at(_pointer_from(library.openblas_get_config)).decode()
    except (OSError, AttributeError):
        return None
    ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return f"{config} from {name}, threads: {num_threads}"


def _pointer_from(function: Any) -> ctypes.c_void_p:
    function.restype = ctypes.c_void_p
    return ctypes.c_void_p(function())


def is_right(library: Any) -> bool:
    """Whether the products agree with numpy's: some builds are wrong on some processors."""
    random = np.random.default_rng(seed=0)
    weight = random.standard_normal((NUM_OUTPUTS, NUM_INPUTS), dtype=np.float32)
    return all(
        np.allclose(_linear(library, rows, weight), rows @ weight.T, rtol=1e-3, atol=1e-3)
        for rows in (
            random.standard_normal((num_rows, NUM_INPUTS), dtype=np.float32)
            for num_rows in (CHUNK, STEP)
        )
    )


def best_num_threads(library: Any) -> int:
    """The number of threads that is fastest on this machine as it is now; also sets it.

    No more than the library would take by itself: one a processor, or OPENBLAS_NUM_THREADS.
    """
    limit = min(library.openblas_get_num_threads(), MAX_THREADS)
    best, shortest = 1, _time(library, 1)
    candidate = 2
    while candidate <= limit:
        taken = _time(library, candidate)
        if taken * WORTHWHILE_GAIN > shortest:
            break
        best, shortest = candidate, taken
        candidate *= 2
    library.openblas_set_num_threads(best)
    return best


def _time(library: Any, num_threads: int) -> float:
    """Seconds for one layer's share of a chunk of prompt and a few decode steps."""
    library.openblas_set_num_threads(num_threads)
    weight = np.ones((NUM_OUTPUTS, NUM_INPUTS), np.float32)
    calls = [np.ones((num_rows, NUM_INPUTS), np.float32) for num_rows in _workload()]
    trials = []
    for _ in range(NUM_TRIALS):
        start = time.perf_counter()
        for rows in calls:
            _linear(library, rows, weight)
        trials.append(time.perf_counter() - start)
    return min(trials)


def _workload() -> Iterator[int]:
    yield CHUNK
    yield from [STEP] * STEPS_PER_CHUNK


def _linear(library: Any, rows: Matrix, weight: Matrix) -> Matrix:
    """`rows @ weight.T`, by the call that MLX makes for a linear layer."""
    (num_rows, num_inputs), num_outputs = rows.shape, len(weight)
    product = np.zeros((num_rows, num_outputs), np.float32)
    library.cblas_sgemm(
        *(ROW_MAJOR, AS_IT_IS, TRANSPOSED),
        *(num_rows, num_outputs, num_inputs),
        ctypes.c_float(1),
        *(rows.ctypes, num_inputs),
        *(weight.ctypes, num_inputs),
        ctypes.c_float(0),
        *(product.ctypes, num_outputs),
    )
    return product


def _bundled_libraries() -> Iterator[str]:
    if _is_installed(BUNDLED_WITH):
        folder = distribution(BUNDLED_WITH).locate_file("opencv_python.libs")
        yield from sorted(map(str, Path(str(folder)).glob("libopenblas*.so*")))


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
