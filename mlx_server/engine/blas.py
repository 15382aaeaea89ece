"""A fast BLAS in place of the reference one that MLX's CPU package is linked with.

The library that comes first in the process wins, so ours must be loaded before MLX is imported.
Of MLX this module knows no more than the names of its packages and the product that it calls.
"""

from __future__ import annotations

import ctypes
import math
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

# The bundled OpenBLAS takes processors younger than itself for older ones without AVX-512.
CORE_VARIABLE, AVX512_CORE = b"OPENBLAS_CORETYPE", b"SkylakeX"
# A thread of OpenBLAS without work spins for 2 to the power of this many cycles before it sleeps.
# With its own 26 it takes a third of a processor from those that write answers out.
SPIN_VARIABLE, SHORT_SPIN = b"OPENBLAS_THREAD_TIMEOUT", b"14"
AVX512_FLAGS = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})
PROCESSOR_INFO = Path("/proc/cpuinfo")

ROW_MAJOR, AS_IT_IS, TRANSPOSED = 101, 111, 112

# Rows of a chunk of a prompt and of a decode step: libraries compute these in different ways.
CHUNK, STEP = 128, 1
NUM_OUTPUTS, NUM_INPUTS = 1536, 576

# What is timed, rows to number of calls, about as they come in a chat.
WORKLOAD = {CHUNK: 1, STEP: 8}
# Spread out, so that the best of each falls between the time slices of other programs.
NUM_TRIALS, PAUSE_S = 25, 0.005
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
    _set_default(SPIN_VARIABLE, SHORT_SPIN)
    if description := _load(SYSTEM_LIBRARY):
        return description
    if has_avx512(PROCESSOR_INFO):
        _set_default(CORE_VARIABLE, AVX512_CORE)
    return next(filter(None, map(_load, _bundled_libraries())), NO_LIBRARY)


def _set_default(variable: bytes, value: bytes) -> None:
    """What the user has set stays. Only libraries see it: Python has read its own copy before."""
    ctypes.CDLL(None).setenv(variable, value, 0)


def has_avx512(processor_info: Path) -> bool:
    """Whether all of the AVX-512 that OpenBLAS's kernels take for granted is there."""
    try:
        lines = processor_info.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= AVX512_FLAGS


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
    """The number of threads that suits the machine, whatever else it does just now; also sets it.

    No more than the library would take by itself: one a processor, or OPENBLAS_NUM_THREADS.
    """
    limit = min(library.openblas_get_num_threads(), MAX_THREADS)
    shortest = _shortest_times(library, [1 << power for power in range(limit.bit_length())])
    best = 1
    for num_threads, taken in shortest.items():
        if taken * WORTHWHILE_GAIN <= shortest[best]:
            best = num_threads
    library.openblas_set_num_threads(best)
    return best


def _shortest_times(library: Any, candidates: list[int]) -> dict[int, float]:
    """Seconds for one layer's share of the workload, by number of threads."""
    weight = np.ones((NUM_OUTPUTS, NUM_INPUTS), np.float32)
    shortest = {(n, num_rows): math.inf for n in candidates for num_rows in WORKLOAD}
    for _ in range(NUM_TRIALS):
        for (num_threads, num_rows), taken in shortest.items():
            library.openblas_set_num_threads(num_threads)
            rows = np.ones((num_rows, NUM_INPUTS), np.float32)
            start = time.perf_counter()
            _linear(library, rows, weight)
            shortest[num_threads, num_rows] = min(taken, time.perf_counter() - start)
        time.sleep(PAUSE_S)
    return {
        n: sum(num_calls * shortest[n, num_rows] for num_rows, num_calls in WORKLOAD.items())
        for n in candidates
    }


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
