"""Records are written behind the caller's back; a faulty disk is never its concern."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mlx_server.engine.disk_store import DiskStore
from mlx_server.engine.host_state import HostArray, HostState
from mlx_server.engine.kv_file import Record
from mlx_server.engine.kv_folder import KVFolder
from tests.kv_states import PLENTY, damaged, keys_of, make_store
from tests.patience import HANG_S

NAMESPACE = "v1-" + "a" * 32


class Gated(KVFolder):
    """Writes only while the gate is open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1 << 30)
        self.gate = threading.Event()

    def write(self, name: str, pieces: Iterator[bytes], last_use_ns: int) -> None:
        assert self.gate.wait(HANG_S)
        super().write(name, pieces, last_use_ns)


class Unwilling(KVFolder):
    """Has no space for a while."""

    is_full = True

    def write(self, name: str, pieces: Iterator[bytes], last_use_ns: int) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().write(name, pieces, last_use_ns)


def name_of(number: int, kind: str = "block") -> str:
    return f"{NAMESPACE}/{kind}-{number}-{number:032x}.safetensors"


def record_of(number: int, *, kind: str = "block") -> Record:
    array = HostArray("F32", np.full((1, 1, 2, 4), number, dtype=np.float32))
    return Record(name_of(number, kind), keys_of([number, number]), HostState("[]", (array,)))


def put(store: DiskStore, number: int) -> bool:
    return store.put(record_of(number), number)


def value_of(store: DiskStore, number: int) -> float | None:
    record = store.read(name_of(number))
    return float(record.state.arrays[0].data[0, 0, 0, 0]) if record else None


def test_what_was_put_is_found_before_and_after_it_is_written(tmp_path: Path) -> None:
    folder = Gated(tmp_path)
    store = DiskStore(folder, max_queued_bytes=PLENTY)
    assert store.put(record_of(1), 1)
    assert store.put(record_of(2, kind="state"), 2)
    assert [store.has(name_of(1)), store.has(name_of(3))] == [True, False]
    assert value_of(store, 1) == 1
    assert store.state_names(NAMESPACE) == [name_of(2, "state")]
    assert not store.flush(0.0)
    assert not list(tmp_path.rglob("*.safetensors"))
    folder.gate.set()
    assert store.flush(HANG_S)
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
    assert value_of(store, 1) == 1
    assert store.state_names(NAMESPACE) == [name_of(2, "state")]


def test_a_store_can_be_written_to_again_after_a_pause(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for number in range(5):
        assert put(store, number)
        assert store.flush(HANG_S)
    assert [value_of(make_store(tmp_path), number) for number in range(5)] == [0, 1, 2, 3, 4]


def test_the_queue_holds_no_more_than_its_bytes(tmp_path: Path) -> None:
    folder = Gated(tmp_path)
    size = record_of(1).num_bytes
    store = DiskStore(folder, max_queued_bytes=2 * size)
    assert [put(store, number) for number in (1, 2, 3)] == [True, True, False]
    assert not store.has(name_of(3))
    folder.gate.set()
    assert store.flush(HANG_S)
    assert put(store, 3)
    assert store.flush(HANG_S)
    assert value_of(store, 3) == 3


def test_the_same_record_is_queued_once(tmp_path: Path) -> None:
    folder = Gated(tmp_path)
    store = DiskStore(folder, max_queued_bytes=2 * record_of(1).num_bytes)
    assert [put(store, number) for number in (1, 1, 2)] == [True, True, True]
    folder.gate.set()
    assert store.flush(HANG_S)


def test_damaged_files_are_a_miss_and_removed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    put(store, 1)
    assert store.flush(HANG_S)
    path = tmp_path / name_of(1)
    whole = path.read_bytes()
    for data in damaged(whole):
        path.write_bytes(data)
        assert store.read(name_of(1)) is None
        assert not path.exists()
        assert not store.has(name_of(1))
    path.write_bytes(whole)
    assert value_of(store, 1) == 1


def test_a_file_under_the_name_of_another_is_a_miss(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    put(store, 1)
    assert store.flush(HANG_S)
    (tmp_path / name_of(1)).rename(tmp_path / name_of(2))
    assert store.read(name_of(2)) is None
    assert not (tmp_path / name_of(2)).exists()


def test_a_full_disk_is_told_once_and_used_again_when_there_is_space(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Unwilling(tmp_path, 1 << 30)
    store = DiskStore(folder, max_queued_bytes=PLENTY)
    with caplog.at_level(logging.INFO):
        for number in range(4):
            put(store, number)
            assert store.flush(HANG_S)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert value_of(store, 1) is None
    folder.is_full = False
    put(store, 9)
    assert store.flush(HANG_S)
    assert value_of(store, 9) == 9


def test_a_folder_that_is_gone_is_made_again(tmp_path: Path) -> None:
    store = make_store(tmp_path / "root")
    put(store, 1)
    assert store.flush(HANG_S)
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    assert store.read(name_of(1)) is None
    put(store, 2)
    assert store.flush(HANG_S)
    assert value_of(store, 2) == 2


def test_a_place_where_nothing_can_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    store = make_store(tmp_path / "file" / "folder")
    put(store, 1)
    assert store.flush(HANG_S)
    assert value_of(store, 1) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_clearing_waits_for_no_writing_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Gated(tmp_path)
    store = DiskStore(folder, max_queued_bytes=PLENTY)
    for number in (1, 2, 3):
        put(store, number)
    other = DiskStore(KVFolder(tmp_path, PLENTY), max_queued_bytes=PLENTY)
    put(other, 4)
    assert other.flush(HANG_S)
    store.clear()
    folder.gate.set()
    assert store.flush(HANG_S)
    assert list(tmp_path.rglob("*.safetensors")) == []
    assert put(store, 1)
    assert store.flush(HANG_S)
    assert store.has(name_of(1))


def test_a_record_that_cannot_be_written_for_whatever_reason_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path, 1 << 30)
    write = KVFolder.write

    def failing(folder: KVFolder, name: str, pieces: Iterator[bytes], last_use_ns: int) -> None:
        if name == name_of(1):
            raise TypeError("boom")
        write(folder, name, pieces, last_use_ns)

    monkeypatch.setattr(KVFolder, "write", failing)
    for number in (1, 2):
        assert put(store, number)
    assert store.flush(HANG_S)
    assert (store.has(name_of(1)), store.has(name_of(2))) == (False, True)
