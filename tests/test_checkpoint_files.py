import os
import shutil
from pathlib import Path

import pytest

from mlx_server.checkpoint_files import (
    fingerprint,
    missing_file,
    read_json,
    weight_bytes,
    weight_names,
)
from tests.checkpoint_folders import write_checkpoint, write_safetensors


def test_a_complete_folder_lacks_nothing(tmp_path: Path) -> None:
    assert missing_file(write_checkpoint(tmp_path / "m")) is None


@pytest.mark.parametrize(
    ("name", "lack"),
    [
        ("config.json", "config.json"),
        ("model.safetensors", "weights in safetensors format"),
        ("tokenizer.json", "a tokenizer"),
    ],
)
def test_what_a_folder_lacks_is_named(tmp_path: Path, name: str, lack: str) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / name).unlink()
    assert missing_file(folder) == lack


def test_a_folder_that_is_not_there_lacks_itself(tmp_path: Path) -> None:
    assert missing_file(tmp_path / "absent") == "the folder itself"


def test_all_shards_of_the_index_are_needed(tmp_path: Path) -> None:
    weight_map = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    index = {"weight_map": weight_map}
    folder = write_checkpoint(tmp_path / "m", model__safetensors__index__json=index)
    (folder / "model-1.safetensors").touch()
    assert missing_file(folder) == "some of its weight files"
    (folder / "model-2.safetensors").touch()
    assert missing_file(folder) is None


def test_the_numbers_in_the_names_count_shards_where_there_is_no_index(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert missing_file(folder) == "some of its weight files"
    (folder / "model-00002-of-00002.safetensors").touch()
    assert missing_file(folder) is None


def test_a_link_to_a_blob_that_is_gone_is_a_missing_file(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    assert missing_file(folder) == "some of its weight files"


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "[" * 100_000, "\ud800"])
def test_a_file_that_holds_no_object_reads_as_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, errors="surrogatepass")
    assert read_json(tmp_path / "x.json") == {}


def test_tensor_names_come_from_the_index_or_the_header(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    assert weight_names(folder) == frozenset()
    write_safetensors(folder / "model.safetensors", "a.weight", "b.weight")
    assert weight_names(folder) == {"a.weight", "b.weight"}
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"c": "x.safetensors"}}')
    assert weight_names(folder) == {"c"}


def test_the_size_of_the_weights_leaves_out_what_is_not_loaded(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"12345")
    (folder / "consolidated.safetensors").write_bytes(b"1234567")
    assert weight_bytes(folder) == 5
    (folder / "shard.safetensors").write_bytes(b"123")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "shard.safetensors"}}'
    )
    assert weight_bytes(folder) == 3


def checkpoint_of(path: Path, weights: bytes = b"0123456789" * 100_000) -> Path:
    folder = write_checkpoint(path)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def test_a_checkpoint_that_is_copied_with_its_times_has_the_same_fingerprint(
    tmp_path: Path,
) -> None:
    folder = checkpoint_of(tmp_path / "m")
    shutil.copytree(folder, tmp_path / "copy")
    assert fingerprint(folder) == fingerprint(folder) == fingerprint(tmp_path / "copy")
    (folder / "README.md").touch()
    assert fingerprint(folder) == fingerprint(tmp_path / "copy")


def write_later(path: Path, content: bytes) -> None:
    """Write with a time of its own, however coarse the clock of the files is."""
    modified_ns = path.stat().st_mtime_ns if path.exists() else 0
    path.write_bytes(content)
    os.utime(path, ns=(modified_ns + 1_000_000, modified_ns + 1_000_000))


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_another_configuration_is_another_fingerprint(tmp_path: Path, name: str) -> None:
    folder = checkpoint_of(tmp_path / "m")
    before = fingerprint(folder)
    (folder / name).write_bytes(b'{"model_type": "other"}')
    assert fingerprint(folder) != before


@pytest.mark.parametrize("place", [0, 12_345, 999_999])
def test_one_changed_byte_of_the_weights_is_another_fingerprint(tmp_path: Path, place: int) -> None:
    folder = checkpoint_of(tmp_path / "m")
    before = fingerprint(folder)
    path = folder / "model.safetensors"
    weights = bytearray(path.read_bytes())
    weights[place] ^= 1
    write_later(path, bytes(weights))
    assert fingerprint(folder) != before


def test_other_weights_of_the_same_size_and_time_are_another_fingerprint(tmp_path: Path) -> None:
    folder = checkpoint_of(tmp_path / "m")
    path = folder / "model.safetensors"
    before, time_ns = fingerprint(folder), path.stat().st_mtime_ns
    path.write_bytes(b"9876543210" * 100_000)
    os.utime(path, ns=(time_ns, time_ns))
    assert fingerprint(folder) != before


def test_names_of_weight_files_and_files_more_or_less_are_another_fingerprint(
    tmp_path: Path,
) -> None:
    folder = checkpoint_of(tmp_path / "m")
    seen = {fingerprint(folder)}
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    seen.add(fingerprint(folder))
    (folder / "more.safetensors").touch()
    seen.add(fingerprint(folder))
    assert len(seen) == 3


def test_the_hub_s_cache_identifies_weights_by_their_hash(tmp_path: Path) -> None:
    def snapshot(name: str, blob: str) -> Path:
        folder = checkpoint_of(tmp_path / name / "snapshots" / "1")
        path = tmp_path / name / "blobs" / blob
        path.parent.mkdir()
        (folder / "model.safetensors").rename(path)
        (folder / "model.safetensors").symlink_to(path)
        os.utime(path, (len(seen) + 1, len(seen) + 1))
        return folder

    seen: list[str] = []
    for name, blob in (("a", "a" * 64), ("b", "a" * 64), ("c", "b" * 64)):
        seen.append(fingerprint(snapshot(name, blob)))
    assert seen[0] == seen[1] != seen[2]
