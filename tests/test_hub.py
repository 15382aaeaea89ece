import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from huggingface_hub import constants

import mlx_server.hub
from mlx_server.catalog import Catalog
from mlx_server.config import ServerConfig
from mlx_server.errors import ModelLoadFailed
from mlx_server.hub import Hub
from tests.checkpoint_folders import REVISION, write_cached
from tests.fake_hub import FakeHub, fake_hub
from tests.no_network import forbid_sockets

REPO = "org/model"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}",
    "model.safetensors": bytes(1000),
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"hello",
    "pytorch_model.bin": bytes(1000),
    "original/model.safetensors": bytes(1000),
    "modeling.py": b"boom()",
}
SIZE = sum(
    len(FILES[name])
    for name in ("config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja")
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub(REPO, FILES) as server:
        yield server


def ignore(stage: str, done: int, total: int) -> None: ...


def test_a_download_brings_what_loading_needs_and_nothing_else(
    tmp_path: Path, server: FakeHub
) -> None:
    folder = Hub(tmp_path, endpoint=server.endpoint).download(REPO, ignore)
    wanted = {"config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"}
    assert {path.name for path in folder.iterdir()} == wanted
    assert set(server.downloaded) == wanted
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]


def test_python_files_come_only_if_code_is_trusted(tmp_path: Path, server: FakeHub) -> None:
    folder = Hub(tmp_path, endpoint=server.endpoint, with_code=True).download(REPO, ignore)
    assert (folder / "modeling.py").exists()


def test_a_download_reports_its_bytes_up_to_the_end(tmp_path: Path, server: FakeHub) -> None:
    reports: list[tuple[str, int, int]] = []
    Hub(tmp_path, endpoint=server.endpoint).download(REPO, lambda *r: reports.append(r))
    assert reports[0] == ("download", 0, SIZE)
    assert reports[-1] == ("download", SIZE, SIZE)


def test_a_download_that_goes_on_counts_what_is_here(tmp_path: Path, server: FakeHub) -> None:
    hub = Hub(tmp_path, endpoint=server.endpoint)
    hub.download(REPO, ignore)
    reports: list[tuple[str, int, int]] = []
    hub.download(REPO, lambda *r: reports.append(r))
    assert reports[0] == ("download", SIZE, SIZE)


def test_a_downloaded_model_is_cached_from_then_on(
    tmp_path: Path, server: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog.from_config(
        ServerConfig(models=(REPO,)), hub=Hub(tmp_path, endpoint=server.endpoint)
    )
    assert not catalog.resolve(REPO).is_cached
    path = catalog.ensure_local(catalog.resolve(REPO), ignore)
    forbid_sockets(monkeypatch)
    entry = catalog.resolve(REPO)
    assert catalog.local_path(entry) == path
    assert entry.is_cached
    assert entry.capabilities == ("completion", "tools")


def test_a_repository_without_weights_is_a_load_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub(REPO, {"config.json": b"{}", "x.bin": b""}) as server:
        hub = Hub(tmp_path, endpoint=server.endpoint)
        catalog = Catalog.from_config(ServerConfig(models=(REPO,)), hub=hub)
        with pytest.raises(ModelLoadFailed, match="lacks weights in safetensors format"):
            catalog.ensure_local(catalog.resolve(None), ignore)


def test_a_repository_that_does_not_exist_is_named_so(tmp_path: Path, server: FakeHub) -> None:
    with pytest.raises(ModelLoadFailed, match="no such repository") as caught:
        Hub(tmp_path, endpoint=server.endpoint).download("org/absent", ignore)
    assert "absent" not in caught.value.message


def test_a_gated_repository_asks_for_its_licence(tmp_path: Path, server: FakeHub) -> None:
    server.status, server.error_code = 403, "GatedRepo"
    with pytest.raises(ModelLoadFailed, match="licence"):
        Hub(tmp_path, endpoint=server.endpoint).download(REPO, ignore)


def test_an_error_of_the_hub_gives_its_status(tmp_path: Path, server: FakeHub) -> None:
    server.status = 418
    with pytest.raises(ModelLoadFailed, match="status 418"):
        Hub(tmp_path, endpoint=server.endpoint).download(REPO, ignore)


def test_a_hub_that_refuses_connections_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        hub = Hub(tmp_path, endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ModelLoadFailed, match="cannot be reached"):
            hub.download(REPO, ignore)


def test_a_hub_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_server.hub, "FIRST_ANSWER_S", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hub = Hub(tmp_path, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        begin = time.monotonic()
        with pytest.raises(ModelLoadFailed, match="cannot be reached"):
            hub.download(REPO, ignore)
        assert time.monotonic() - begin < 5


def test_a_look_up_that_does_not_end_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def look_up(*_: object, **__: object) -> NoReturn:
        is_over.wait(5)
        raise socket.gaierror

    monkeypatch.setattr(mlx_server.hub, "FIRST_ANSWER_S", 0.2)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    begin = time.monotonic()
    with pytest.raises(ModelLoadFailed, match="cannot be reached"):
        Hub(tmp_path, endpoint="http://hub.example").download(REPO, ignore)
    is_over.set()
    assert time.monotonic() - begin < 3


def test_no_bars_but_ours_are_drawn(
    tmp_path: Path,
    server: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # draws them even where there is no terminal
    monkeypatch.setenv("TQDM_POSITION", "-1")
    Hub(tmp_path, endpoint=server.endpoint).download(REPO, ignore)
    assert capsys.readouterr().err == ""


def test_b120_offline_mode_opens_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    forbid_sockets(monkeypatch)
    with pytest.raises(ModelLoadFailed, match="HF_HUB_OFFLINE"):
        Hub(tmp_path).download(REPO, ignore)


def test_repositories_are_found_by_the_names_of_their_folders(tmp_path: Path) -> None:
    for name in ("models--b--x", "models--a--x.y-z", "models--solo", "datasets--a--d", "models--a"):
        (tmp_path / name).mkdir()
    assert Hub(tmp_path).repos() == ["a/x.y-z", "b/x"]
    assert Hub(tmp_path / "absent").repos() == []


def test_the_main_revision_comes_before_newer_ones(tmp_path: Path) -> None:
    main = write_cached(tmp_path, REPO)
    others = [write_cached(tmp_path, REPO, revision=r, is_main=False) for r in ("a" * 40, "b" * 40)]
    for age, folder in enumerate((others[1], others[0], main)):
        os.utime(folder, (2_000_000_000 - age, 2_000_000_000 - age))
    assert list(Hub(tmp_path).snapshots(REPO)) == [main, others[1], others[0]]


def test_a_revision_without_a_branch_is_found(tmp_path: Path) -> None:
    folder = write_cached(tmp_path, REPO, is_main=False)
    assert list(Hub(tmp_path).snapshots(REPO)) == [folder]
    assert folder.name == REVISION
    assert list(Hub(tmp_path).snapshots("org/absent")) == []
