from pathlib import Path

import pytest

from mlx_server.checkpoint_files import missing_file, read_json, weight_names
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
