"""Files appear whole, leave in the order of their last use, and may be anybody's to remove."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlx_server.engine.kv_folder import ABANDONED_S, KVFolder, last_uses

NAMESPACE = "v1-" + "a" * 32
OTHER = "v1-" + "b" * 32
SIZE = 100


def name_of(number: int, *, kind: str = "block", namespace: str = NAMESPACE) -> str:
    return f"{namespace}/{kind}-{number}-{number:032x}.safetensors"


def write(folder: KVFolder, number: int, last_use_ns: int, **kwargs: str) -> str:
    name = name_of(number, **kwargs)
    folder.write(name, iter([b"x" * SIZE]), last_use_ns)
    return name


def counted(folder: KVFolder) -> int:
    return sum(path.stat().st_size for path in folder.root.rglob("*.safetensors"))


def kept(folder: KVFolder) -> set[int]:
    numbers = {int(path.name.split("-")[1]) for path in folder.root.rglob("*.safetensors")}
    assert len(folder) == len(numbers)
    assert folder.num_bytes == counted(folder)
    return numbers


def test_what_is_written_can_be_read_by_all(tmp_path: Path) -> None:
    ours, theirs = KVFolder(tmp_path, 1000), KVFolder(tmp_path, 1000)
    name = write(ours, 1, time.time_ns())
    for folder in (ours, theirs, KVFolder(tmp_path, 1000)):
        assert folder.has(name)
        assert folder.read(name) == b"x" * SIZE
        assert kept(folder) == {1}
    assert not ours.has(name_of(2))
    assert ours.read(name_of(2)) is None


def test_only_the_owner_can_read_what_is_written(tmp_path: Path) -> None:
    folder = KVFolder(tmp_path / "new", 1000)
    path = folder.root / write(folder, 1, time.time_ns())
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"abc"
        raise OSError(28, "No space left on device")

    folder = KVFolder(tmp_path, 1000)
    with pytest.raises(OSError):
        folder.write(name_of(1), pieces(), 0)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert folder.num_bytes == 0


def test_a_file_that_another_has_removed_is_not_counted(tmp_path: Path) -> None:
    folder = KVFolder(tmp_path, 1000)
    name = write(folder, 1, 0)
    (tmp_path / name).unlink()
    assert folder.read(name) is None
    assert not folder.has(name)
    assert kept(folder) == set()
    folder.remove(name)
    folder.touch(name, 5)
    assert kept(folder) == set()


def test_room_is_made_by_removing_what_was_used_longest_ago(tmp_path: Path) -> None:
    folder = KVFolder(tmp_path, 4 * SIZE)
    for number, last_use_ns in ((1, 30), (2, 10), (3, 40), (4, 20)):
        assert folder.make_room(SIZE, last_use_ns)
        write(folder, number, last_use_ns)
    folder.touch(name_of(2), 50)
    assert folder.make_room(SIZE, 60)
    assert kept(folder) == {1, 2, 3}
    assert folder.make_room(2 * SIZE, 60)
    assert kept(folder) == {2, 3}


def test_nothing_leaves_for_what_would_be_the_next_to_leave(tmp_path: Path) -> None:
    folder = KVFolder(tmp_path, 2 * SIZE)
    write(folder, 1, 20)
    write(folder, 2, 30)
    assert not folder.make_room(SIZE, 10)
    assert kept(folder) == {1, 2}
    assert not folder.make_room(3 * SIZE, 20)


def test_the_budget_counts_the_files_of_all_models_and_of_earlier_runs(tmp_path: Path) -> None:
    before = KVFolder(tmp_path, 1000)
    write(before, 1, 10, namespace=OTHER)
    write(before, 2, 20)
    write(before, 3, 30, namespace=OTHER)
    folder = KVFolder(tmp_path, 2 * SIZE + SIZE // 2)
    assert kept(folder) == {2, 3}
    assert set(folder.names()) == {name_of(2), name_of(3, namespace=OTHER)}


def test_files_that_another_server_writes_count_before_long(tmp_path: Path) -> None:
    ours, theirs = KVFolder(tmp_path, 5 * SIZE), KVFolder(tmp_path, 5 * SIZE)
    for number in range(20):
        folder = ours if number % 2 else theirs
        assert folder.make_room(SIZE, number)
        write(folder, number, number)
        assert counted(folder) <= 6 * SIZE
    assert 19 in {int(path.name.split("-")[1]) for path in tmp_path.rglob("*.safetensors")}


def test_what_is_not_ours_is_neither_counted_nor_removed(tmp_path: Path) -> None:
    strangers = [
        tmp_path / "notes.txt",
        tmp_path / "model" / "block-1-x.safetensors",
        tmp_path / NAMESPACE / "notes.txt",
        tmp_path / NAMESPACE / "block-1-short.safetensors",
        tmp_path / name_of(1, namespace="other"),
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 5000)
    folder = KVFolder(tmp_path, SIZE)
    assert (len(folder), folder.num_bytes) == (0, 0)
    write(folder, 7, 1)
    folder.make_room(SIZE, 2)
    assert all(path.exists() for path in strangers)


def test_only_old_parts_of_files_are_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / NAMESPACE).mkdir()
    old, young = (tmp_path / NAMESPACE / f".123-0a1b-{i}.part" for i in range(2))
    old.touch()
    young.touch()
    long_ago = time.time() - 2 * ABANDONED_S
    os.utime(old, (long_ago, long_ago))
    KVFolder(tmp_path, 1000)
    assert not old.exists()
    assert young.exists()


def test_states_are_told_from_blocks(tmp_path: Path) -> None:
    before = KVFolder(tmp_path, 1000)
    first = write(before, 1, 1, kind="state")
    write(before, 2, 2)
    write(before, 3, 3, kind="state", namespace=OTHER)
    folder = KVFolder(tmp_path, 1000)
    assert folder.state_names(NAMESPACE) == [first]
    second = write(folder, 4, 4, kind="state")
    assert set(folder.state_names(NAMESPACE)) == {first, second}
    folder.remove(first)
    assert folder.state_names(NAMESPACE) == [second]


def test_a_parent_leaves_after_its_children_even_when_the_folder_is_read_anew(
    tmp_path: Path,
) -> None:
    names = [name_of(number) for number in range(1, 6)]
    folder = KVFolder(tmp_path, 1000)
    for name, last_use_ns in last_uses(names).items():
        folder.write(name, iter([b"x" * SIZE]), last_use_ns)
    assert kept(KVFolder(tmp_path, 3 * SIZE + SIZE // 2)) == {1, 2, 3}


def test_a_folder_that_cannot_be_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = KVFolder(tmp_path / "file" / "folder", 1000)
    assert len(folder) == 0
    assert not folder.has(name_of(1))
    with pytest.raises(OSError):
        write(folder, 1, 1)
