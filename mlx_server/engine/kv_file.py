"""The bytes of one stored piece of KV state: a safetensors file with a checksum over all of it.

Knows nothing of caches and of folders.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mlx_server.engine.host_state import HostArray, HostState

NUMPY_TYPES = {
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "|u1",
    "BOOL": "|b1",
}
LENGTH_BYTES = 8
KEYS = "keys"
CHECKSUM = re.compile(rb'"crc32": "([0-9a-f]{8})"')
NO_CHECKSUM = b'"crc32": "00000000"'
"""Stands in the header while the checksum is computed."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """State of the positions whose keys are `keys`; `name` stands for those and all before them."""

    name: str
    keys: npt.NDArray[np.int64]
    state: HostState

    @property
    def num_bytes(self) -> int:
        """What the file takes, but for its header."""
        return int(self.keys.nbytes) + self.state.num_bytes


def dump(record: Record) -> Iterator[bytes]:
    """The file in pieces; goes through the arrays twice, so as to hold no copy of all of them."""
    header = _header(record)
    checksum = zlib.crc32(header)
    for piece in _payload(record):
        checksum = zlib.crc32(piece, checksum)
    yield len(header).to_bytes(LENGTH_BYTES, "little")
    yield header.replace(NO_CHECKSUM, b'"crc32": "%08x"' % checksum, 1)
    yield from _payload(record)


def parse(data: bytes) -> Record:
    """Raises ValueError unless `data` is all that `dump` wrote; the arrays are views of it."""
    start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    header = data[LENGTH_BYTES:start]
    _verify(header, memoryview(data)[start:])
    try:
        tensors = json.loads(header)
        about = tensors.pop("__metadata__")
        arrays = {name: _array(data, start, tensor) for name, tensor in tensors.items()}
        keys = arrays.pop(KEYS).data
        state = HostState(about["layout"], tuple(arrays[str(i)] for i in range(len(arrays))))
        return Record(about["name"], keys, state)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a file of this server") from error


def _tensors(record: Record) -> Iterator[tuple[str, HostArray]]:
    yield KEYS, HostArray("I64", record.keys)
    for i, array in enumerate(record.state.arrays):
        yield str(i), array


def _payload(record: Record) -> Iterator[bytes]:
    return (array.data.tobytes() for _, array in _tensors(record))


def _header(record: Record) -> bytes:
    about = {"crc32": "0" * 8, "name": record.name, "layout": record.state.layout}
    header: dict[str, Any] = {"__metadata__": about}
    end = 0
    for name, array in _tensors(record):
        begin, end = end, end + array.data.nbytes
        header[name] = {
            "dtype": array.dtype,
            "shape": list(array.data.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    # safetensors wants the payload aligned
    return text + b" " * (-len(text) % LENGTH_BYTES)


def _verify(header: bytes, payload: memoryview) -> None:
    found = CHECKSUM.search(header)
    if found is None:
        raise ValueError("no checksum")
    blank = header.replace(found.group(), NO_CHECKSUM, 1)
    if zlib.crc32(payload, zlib.crc32(blank)) != int(found[1], 16):
        raise ValueError("wrong checksum")


def _array(data: bytes, start: int, tensor: dict[str, Any]) -> HostArray:
    dtype = np.dtype(NUMPY_TYPES[tensor["dtype"]])
    begin, end = tensor["data_offsets"]
    flat = np.frombuffer(data, dtype, (end - begin) // dtype.itemsize, start + begin)
    return HostArray(tensor["dtype"], flat.reshape(tensor["shape"]))
