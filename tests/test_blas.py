"""The BLAS for MLX on a CPU: which library is taken, and that MLX then really uses it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlx_server.engine import blas

ROOT = Path(__file__).parent.parent

PRELOAD_BUNDLED = (
    "from mlx_server.engine import blas\n"
    "blas.SYSTEM_LIBRARY = 'libnosuchblas.so.0'\n"
    "print(blas.preload_blas())\n"
)

NOTHING = Path("/nonexistent")

needs_library = pytest.mark.skipif(
    sys.platform != "linux" or not list(blas._bundled_libraries()),
    reason="no OpenBLAS comes with the dependencies on this system",
)

needs_avx512 = pytest.mark.skipif(
    not blas.has_avx512(blas.PROCESSOR_INFO), reason="this processor has no AVX-512"
)


class ScriptedBlas:
    """Multiplies with numpy, plus `error` where there is more than one row, and keeps a count of
    its calls.
    """

    def __init__(
        self, num_processors: int = 1, error: float = 0.0, step_error: float = 0.0
    ) -> None:
        self.num_threads = num_processors
        self.error = error
        self.step_error = step_error
        self.used: list[int] = []

    def openblas_get_num_threads(self) -> int:
        return self.num_threads

    def openblas_set_num_threads(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def cblas_sgemm(self, *arguments: Any) -> None:
        num_rows, num_outputs, num_inputs = arguments[3:6]
        self.used.append(self.num_threads)
        rows = _array(arguments[7], num_rows, num_inputs)
        weight = _array(arguments[9], num_outputs, num_inputs)
        error = self.error if num_rows > 1 else self.step_error
        _array(arguments[12], num_rows, num_outputs)[:] = rows @ weight.T + error


def _array(pointer: Any, num_rows: int, num_columns: int) -> blas.Matrix:
    floats = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(floats, (num_rows, num_columns))


def run(code: str, **environment: str) -> str:
    """What the code prints in a process that has not loaded MLX yet."""
    assignments = [f"{name}={value}" for name, value in environment.items()]
    command = ["env", *assignments, sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


def write_package(folder: Path, name: str) -> None:
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")


@needs_library
def test_mlx_takes_its_products_from_the_library_that_the_log_names(tmp_path: Path) -> None:
    code = (
        "from mlx_server.engine.blas import preload_blas\n"
        "print(preload_blas())\n"
        "import mlx.core as mx\n"
        "mx.eval(mx.ones((9, 9)) @ mx.ones((9, 9)))\n"
    )
    log = tmp_path / "bindings"
    description = run(code, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(log))
    (bindings,) = tmp_path.glob("bindings.*")
    bound = [
        line.split(" to ")[1].split(" [")[0]
        for line in bindings.read_text().splitlines()
        if "libmlx.so" in line and "`cblas_sgemm'" in line
    ]
    assert len(bound) == 1
    assert bound[0] in description or "libopenblas.so.0" in bound[0]
    assert "OpenBLAS" in description


@needs_library
def test_once_mlx_is_there_it_is_too_late_and_the_log_says_so() -> None:
    code = (
        "import mlx.core\nfrom mlx_server.engine.blas import preload_blas\nprint(preload_blas())\n"
    )
    assert run(code).strip() == blas.TOO_LATE


@needs_library
def test_loading_twice_is_harmless() -> None:
    code = (
        "from mlx_server.engine.blas import preload_blas\n"
        "preload_blas()\n"
        "import mlx.core\n"
        "print(preload_blas())\n"
    )
    assert "OpenBLAS" in run(code)


@needs_library
@needs_avx512
def test_the_bundled_library_uses_the_processors_avx512() -> None:
    assert " SkylakeX " in run(PRELOAD_BUNDLED)


@needs_library
@pytest.mark.parametrize(
    ("set_by_user", "expected"),
    [({}, blas.SHORT_SPIN), ({"OPENBLAS_THREAD_TIMEOUT": "20"}, b"20")],
)
def test_threads_without_work_sleep_soon_unless_the_user_wants_otherwise(
    set_by_user: dict[str, str], expected: bytes
) -> None:
    code = (
        "import ctypes\n"
        "from mlx_server.engine.blas import preload_blas\n"
        "preload_blas()\n"
        "getenv = ctypes.CDLL(None).getenv\n"
        "getenv.restype = ctypes.c_char_p\n"
        "print(getenv(b'OPENBLAS_THREAD_TIMEOUT'))\n"
    )
    assert run(code, **set_by_user).strip() == repr(expected)


@needs_library
@needs_avx512
def test_what_the_user_says_of_the_processor_stays() -> None:
    assert " Haswell " in run(PRELOAD_BUNDLED, OPENBLAS_CORETYPE="Haswell")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512dq avx512cd avx512bw avx512vl\n", True),
        ("flags\t\t: fpu avx2 avx512f avx512cd avx512er avx512pf\n", False),
        ("flags\t\t: fpu avx2\n", False),
        ("Features\t: fp asimd sve\n", False),
    ],
    ids=["all of it", "another kind", "none", "an ARM"],
)
def test_avx512_is_there_if_all_of_it_is(lines: str, expected: bool, tmp_path: Path) -> None:
    processor_info = tmp_path / "cpuinfo"
    processor_info.write_text(f"processor\t: 0\n{lines}")
    assert blas.has_avx512(processor_info) is expected


def test_a_system_that_tells_nothing_of_its_processor_has_no_avx512(tmp_path: Path) -> None:
    assert blas.has_avx512(tmp_path / "missing") is False


def test_nothing_is_loaded_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas.preload_blas() is None


@pytest.mark.parametrize("package", blas.CUDA_PACKAGES)
def test_nothing_is_loaded_where_mlx_has_cuda(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, package)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.syspath_prepend(tmp_path)
    assert blas.preload_blas() is None


def test_without_any_library_mlx_keeps_its_own_and_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "SYSTEM_LIBRARY", "libnosuchblas.so.0")
    monkeypatch.setattr(blas, "BUNDLED_WITH", "no-such-package")
    monkeypatch.setattr(blas, "PROCESSOR_INFO", NOTHING)
    assert blas.preload_blas() == blas.NO_LIBRARY


def test_a_library_without_the_functions_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.setattr(blas, "SYSTEM_LIBRARY", "libm.so.6")
    monkeypatch.setattr(blas, "BUNDLED_WITH", "no-such-package")
    monkeypatch.setattr(blas, "PROCESSOR_INFO", NOTHING)
    assert blas.preload_blas() == blas.NO_LIBRARY


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        (ScriptedBlas(), True),
        (ScriptedBlas(error=0.1), False),
        (ScriptedBlas(step_error=0.1), False),
        (ScriptedBlas(error=float("nan")), False),
    ],
    ids=["right", "wrong for a prompt", "wrong for one token", "no number"],
)
def test_a_library_is_right_if_it_agrees_with_numpy(library: ScriptedBlas, expected: bool) -> None:
    assert blas.is_right(library) is expected


@pytest.mark.parametrize(
    ("num_processors", "seconds", "expected"),
    [
        (1, {1: 1.0}, 1),
        (2, {1: 1.0, 2: 0.6}, 2),
        (2, {1: 1.0, 2: 0.95}, 1),
        (3, {1: 1.0, 2: 0.6}, 2),
        (8, {1: 1.0, 2: 0.6, 4: 0.4, 8: 0.5}, 4),
        (4, {1: 1.0, 2: 0.95, 4: 0.6}, 4),
        (64, {1: 1.6, 2: 0.8, 4: 0.4, 8: 0.2, 16: 0.1}, 16),
    ],
    ids=[
        "one core",
        "both help",
        "too little",
        "odd",
        "past the best",
        "only all help",
        "no more than the limit",
    ],
)
def test_the_number_of_threads_is_the_fastest_one(
    num_processors: int,
    seconds: dict[int, float],
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = ScriptedBlas(num_processors)
    monkeypatch.setattr(
        blas, "_shortest_times", lambda _, candidates: {n: seconds[n] for n in candidates}
    )
    assert blas.best_num_threads(library) == expected
    assert library.num_threads == expected


def test_a_moment_of_other_programs_does_not_decide_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    num_calls = 0

    def run_on_a_busy_machine(library: ScriptedBlas, rows: blas.Matrix, _: blas.Matrix) -> None:
        nonlocal now, num_calls
        num_calls += 1
        is_alone = num_calls % 5 == 0
        now += len(rows) / library.num_threads * (1 if is_alone else 10 * library.num_threads)

    monkeypatch.setattr(blas, "_linear", run_on_a_busy_machine)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert blas.best_num_threads(ScriptedBlas(num_processors=2)) == 2


def test_threads_are_timed_with_the_number_that_is_asked_for() -> None:
    library = ScriptedBlas(num_processors=4)
    blas._shortest_times(library, [3])
    assert set(library.used) == {3}
