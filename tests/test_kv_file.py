"""A file is read as it was written or not at all."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from mlx_server.engine.host_state import HostState, to_host
from mlx_server.engine.kv_file import NO_CHECKSUM, Record, dump, parse
from tests.kv_states import damaged, hybrid, keys_of, quantised, sliceable

IDS = list(range(3, 23))


def record_of(state: HostState) -> Record:
    return Record("n/state-20-a.safetensors", keys_of(IDS), state)


def bytes_of(record: Record) -> bytes:
    return b"".join(dump(record))


def sealed(header: dict[str, Any]) -> bytes:
    """A file with a right checksum, whatever else is in it."""
    header = {"__metadata__": {"crc32": "0" * 8, "name": "n", "layout": "[]"}, **header}
    text = json.dumps(header).encode()
    text = text.replace(NO_CHECKSUM, b'"crc32": "%08x"' % zlib.crc32(text), 1)
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "state",
    [
        to_host(sliceable(IDS)),
        to_host(sliceable(IDS, dtype=mx.bfloat16)),
        to_host(sliceable(IDS, dtype=mx.float16)),
        to_host(sliceable(IDS)).positions(4, 9),
        to_host(quantised(IDS)),
        to_host(hybrid(IDS)),
    ],
    ids=["float32", "bfloat16", "float16", "a block", "quantised", "hybrid"],
)
def test_a_record_comes_back_as_it_was(state: HostState) -> None:
    record = record_of(state)
    back = parse(bytes_of(record))
    assert back.name == record.name
    assert back.keys.tolist() == IDS
    assert back.state.layout == state.layout
    for ours, theirs in zip(back.state.arrays, state.arrays, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.data.dtype == theirs.data.dtype
        assert np.array_equal(ours.data, theirs.data)


def test_others_read_the_file_as_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(bytes_of(record_of(to_host(sliceable(IDS, dtype=mx.bfloat16)))))
    with safe_open(path, "mlx") as file:
        assert set(file.keys()) == {"keys", "0", "1", "2", "3"}
        assert file.metadata()["name"] == "n/state-20-a.safetensors"
    arrays = mx.load(str(path))
    assert arrays["keys"].tolist() == IDS
    assert arrays["0"].dtype == mx.bfloat16
    assert arrays["0"][0, 0, :, 0].tolist() == IDS


def test_damaged_files_are_refused() -> None:
    for data in damaged(bytes_of(record_of(to_host(hybrid(IDS))))):
        with pytest.raises(ValueError):
            parse(data)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_a_flipped_bit_anywhere_is_noticed(data: st.DataObject) -> None:
    whole = bytearray(bytes_of(record_of(to_host(sliceable(IDS)))))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError):
        parse(bytes(whole))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse(data)


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"keys": []},
        {"keys": {"dtype": "F8", "shape": [0], "data_offsets": [0, 0]}},
        {"keys": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}},
        {"keys": {"dtype": "I64", "shape": [0], "data_offsets": [0]}},
        {"keys": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}, "7": {}},
        {"__metadata__": {"crc32": "0" * 8}},
        {"__metadata__": {"crc32": "0" * 8, "x": "[" * 10_000}},
    ],
)
def test_sealed_files_of_another_form_are_refused(header: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        parse(sealed(header))


def test_the_seal_of_these_tests_is_right() -> None:
    empty = {"keys": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}}
    assert parse(sealed(empty)).name == "n"
