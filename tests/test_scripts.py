"""run.sh and the set-up it shares with the other scripts, with stand-ins for uv and Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

UV = """#!/bin/sh
echo "uv $1" >>"$CALLS"
case $1 in
    venv)
        [ ! -e .venv ] || exit 1
        mkdir -p .venv/bin
        cp "$PYTHON_STAND_IN" .venv/bin/python
        ;;
    pip)
        for argument; do extras=$argument; done
        echo "install $extras" >>"$CALLS"
        [ -z "$FAILS" ]
        ;;
esac
"""
PYTHON = """#!/bin/sh
[ "$1" = -c ] || printf '%s\\n' "$PWD" "$@"
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout without packages, in which every call of uv is noted."""

    folder: Path
    calls: Path
    bin: Path

    def run(
        self, *arguments: str, fails: bool = False, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "CALLS": str(self.calls),
            "PYTHON_STAND_IN": str(self.bin / "stand-in"),
            "FAILS": "yes" if fails else "",
        }
        return subprocess.run(
            arguments, cwd=cwd or self.folder, env=environment, capture_output=True, text=True
        )

    def take_calls(self) -> list[str]:
        """What was called since the last time."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return calls


FRESH = ["uv venv", "uv pip", "install ."]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    folder, binaries = tmp_path / "checkout", tmp_path / "bin"
    binaries.mkdir()
    for name, text in {"uv": UV, "stand-in": PYTHON}.items():
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    folder.mkdir()
    for name in ("run.sh", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    return Checkout(folder, tmp_path / "calls", binaries)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["gemma"]),
        (["qwen"], ["qwen"]),
        (["smollm2", "--port", "1300"], ["smollm2", "--port", "1300"]),
        (["--port", "1300"], ["gemma", "--port", "1300"]),
        (["my models/one", "--alias", "a=b c"], ["my models/one", "--alias", "a=b c"]),
    ],
    ids=["nothing", "alias", "alias and option", "option", "blanks"],
)
def test_the_first_argument_is_the_model_and_the_others_are_passed_on(
    arguments: list[str], expected: list[str], checkout: Checkout
) -> None:
    ran = checkout.run("./run.sh", *arguments)
    assert ran.returncode == 0
    command = ["-P", "-m", "mlx_server.main", "--model"]
    assert ran.stdout.splitlines()[1:] == [*command, *expected]


def test_the_server_runs_in_the_callers_folder(checkout: Checkout, tmp_path: Path) -> None:
    ran = checkout.run(str(checkout.folder / "run.sh"), "smollm2", cwd=tmp_path)
    assert ran.stdout.splitlines()[0] == str(tmp_path)
    assert not (tmp_path / ".venv").exists()


def test_the_second_start_installs_nothing_and_says_nothing(checkout: Checkout) -> None:
    assert "Installing" in checkout.run("./run.sh").stderr
    assert checkout.take_calls() == FRESH
    ran = checkout.run("./run.sh")
    assert checkout.take_calls() == []
    assert ran.stderr == ""


def test_new_dependencies_are_added_to_what_is_there(checkout: Checkout) -> None:
    checkout.run("./run.sh")
    checkout.take_calls()
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    checkout.run("./run.sh")
    assert checkout.take_calls() == ["uv pip", "install ."]


def test_an_installation_that_broke_off_is_begun_anew(checkout: Checkout) -> None:
    ran = checkout.run("./run.sh", fails=True)
    assert ran.returncode != 0
    assert ran.stdout == ""
    checkout.take_calls()
    assert checkout.run("./run.sh").returncode == 0
    assert checkout.take_calls() == FRESH


def test_an_update_that_broke_off_is_begun_anew(checkout: Checkout) -> None:
    checkout.run("./run.sh")
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    checkout.run("./run.sh", fails=True)
    checkout.take_calls()
    checkout.run("./run.sh")
    assert checkout.take_calls() == FRESH


def test_tests_bring_their_tools_and_the_server_does_with_them(checkout: Checkout) -> None:
    checkout.run("./run.sh")
    checkout.take_calls()
    assert checkout.run("./scripts/test", "-q").stdout.splitlines()[1:] == ["-m", "pytest", "-q"]
    assert checkout.take_calls() == ["uv pip", "install .[dev]"]
    checkout.run("./run.sh")
    checkout.run("./scripts/check")
    assert checkout.take_calls() == []


def test_a_checkout_that_was_moved_is_installed_again(checkout: Checkout) -> None:
    checkout.run("./run.sh")
    checkout.take_calls()
    moved = checkout.folder.rename(checkout.folder.parent / "elsewhere")
    checkout.run("./run.sh", cwd=moved)
    assert checkout.take_calls() == ["uv pip", "install ."]


def test_a_python_that_has_gone_is_replaced(checkout: Checkout) -> None:
    checkout.run("./run.sh")
    (checkout.folder / ".venv/bin/python").unlink()
    checkout.take_calls()
    assert checkout.run("./run.sh").returncode == 0
    assert checkout.take_calls() == FRESH


def test_without_a_recent_python_the_message_says_what_to_install(checkout: Checkout) -> None:
    (checkout.bin / "uv").unlink()
    tools = checkout.bin.parent / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "cksum", "dirname", "env", "mkdir", "rm", "sleep"):
        (tools / name).symlink_to(shutil.which(name) or name)
    ran = checkout.run("env", f"PATH={tools}", "./run.sh")
    assert ran.returncode != 0
    assert "needs Python 3.11 or newer" in ran.stderr


@pytest.mark.parametrize("option", [["--model", "x"], ["--model=x"]])
def test_a_model_among_the_options_takes_the_place_of_the_default(
    checkout: Checkout, option: list[str]
) -> None:
    ran = checkout.run("./run.sh", "--port", "1", *option)
    assert "gemma" not in ran.stdout
    assert ran.stdout.splitlines()[-len(option) :] == option


def test_the_lock_of_a_set_up_that_was_killed_is_taken_over(checkout: Checkout) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    lock = checkout.folder / ".setup-lock"
    lock.mkdir()
    (lock / "owner").write_text(str(gone.pid))
    assert checkout.run("./run.sh").returncode == 0
    assert not lock.exists()


def test_of_two_set_ups_at_once_the_second_waits(checkout: Checkout) -> None:
    lock = checkout.folder / ".setup-lock"
    lock.mkdir()
    (lock / "owner").write_text(str(os.getpid()))
    with subprocess.Popen(["./run.sh"], cwd=checkout.folder, stderr=subprocess.DEVNULL) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1.5)
        waiting.kill()
    assert checkout.take_calls() == []
