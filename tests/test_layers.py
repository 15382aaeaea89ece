"""The import rules of the package, checked on its source, and what an import of it brings along."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mlx_server"

HTTP = {"fastapi", "starlette", "uvicorn"}
ABOVE_THE_ENGINE = {"mlx_server.api", "mlx_server.main", "mlx_server.middleware"}
MLX = {"mlx", "mlx_vlm", "mlx_lm", "mlx_audio"}

HTTP_LAYER = ("main.py", "api/", "middleware/")
# These decide and describe; the arrays are elsewhere.
WITHOUT_ARRAYS = (
    "engine/sequence.py",
    "engine/scheduler.py",
    "engine/media.py",
    "engine/status.py",
    "engine/downloads.py",
    "engine/engine.py",
    "engine/opening.py",
)
PARSERS_MAY_IMPORT = {"mlx_server.parsers", "mlx_server.engine.sequence", "mlx_server.errors"}


def imports(source: str) -> Iterator[str]:
    """Every name that is imported, those inside functions and of relative imports included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_in(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text()


def test_only_the_http_layer_imports_http() -> None:
    banned = HTTP | ABOVE_THE_ENGINE
    wrong = [
        f"{path} imports {name}"
        for path, source in sources()
        if not path.startswith(HTTP_LAYER) and path != "__main__.py"
        for name in imports(source)
        if is_in(name, banned)
    ]
    assert wrong == []


def test_only_the_engine_imports_mlx() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, source in sources()
        if not path.startswith("engine/") or path in WITHOUT_ARRAYS
        for name in imports(source)
        if is_in(name, MLX)
    ]
    assert wrong == []


def test_parsers_know_of_the_engine_only_its_values() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, source in sources()
        if path.startswith("parsers/")
        for name in imports(source)
        if is_in(name, {"mlx_server"}) and not is_in(name, PARSERS_MAY_IMPORT)
    ]
    assert wrong == []


def test_imports_are_absolute() -> None:
    wrong = [path for path, source in sources() for name in imports(source) if name[0] == "."]
    assert wrong == []


def test_only_the_command_line_reads_the_environment() -> None:
    readers = {"environ", "getenv", "putenv"}
    wrong = [
        path
        for path, source in sources()
        if path != "cli.py"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in readers
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "source",
    [
        "import fastapi.routing",
        "from starlette import status",
        "def f():\n    from mlx_server import api",
        "from mlx_server.main import create_app",
    ],
)
def test_the_rule_sees_imports_of_every_form(source: str) -> None:
    assert any(is_in(name, HTTP | ABOVE_THE_ENGINE) for name in imports(source))


def test_importing_the_app_loads_no_mlx_so_that_the_server_listens_first() -> None:
    heavy = ("mlx.", "mlx_vlm", "transformers", "numpy")
    check = f"import sys, mlx_server.main; print([m for m in sys.modules if m.startswith({heavy})])"
    ran = subprocess.run(
        [sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"
