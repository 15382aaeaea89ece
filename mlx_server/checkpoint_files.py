"""Which files make up a checkpoint folder: are they all there, and are they still the same.

Knows nothing of what the configuration in them means.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "vocab.json",
    "vocab.txt",
)
SHARD = re.compile(r"-\d+-of-(?P<count>\d{1,9})\.safetensors$")
# What decides which KV state a checkpoint computes; images are what their processor makes of them
CONFIGURATIONS = ("config.json", "preprocessor_config.json", "processor_config.json")
BLOB = re.compile("[0-9a-f]{40,64}")
NUM_SAMPLES = 32
SAMPLE_BYTES = 4096
MAX_HEADER_BYTES = 64 * 1024 * 1024


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in the file, or an empty one if there is no file or it holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def missing_file(folder: Path) -> str | None:
    """What the folder lacks to be loaded, in words; None if it is complete."""
    try:
        return _missing_file(folder)
    except OSError:
        return "permission to read it"


def _missing_file(folder: Path) -> str | None:
    if not folder.is_dir():
        return "the folder itself"
    if not (folder / "config.json").is_file():
        return "config.json"
    weights = set(_weight_map(folder).values()) or {p.name for p in folder.glob("*.safetensors")}
    if not weights:
        return "weights in safetensors format"
    if _is_part(weights) or not all((folder / name).is_file() for name in weights):
        return "some of its weight files"
    has_tokenizer = any((folder / name).is_file() for name in TOKENIZER_FILES)
    if not has_tokenizer and not any(folder.glob("*.tiktoken")):
        return "a tokenizer"
    return None


def _is_part(names: set[str]) -> bool:
    """Whether the numbers in the names speak of more files than these."""
    shards = filter(None, map(SHARD.search, names))
    return any(int(shard["count"]) > len(names) for shard in shards)


def _weight_map(folder: Path) -> dict[str, str]:
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        return {}
    return {key: str(name) for key, name in weight_map.items()}


def weight_names(folder: Path) -> frozenset[str]:
    """The names of the tensors, from the index or the header of a single weight file; empty if
    neither says.
    """
    indexed = _weight_map(folder)
    if indexed:
        return frozenset(indexed)
    return frozenset(read_header(folder / "model.safetensors"))


def weight_files(folder: Path) -> list[Path]:
    """The files that are read at load: those of the index, or all but the one that repeats them."""
    indexed = {folder / name for name in _weight_map(folder).values()}
    present = [file for file in sorted(indexed) if file.is_file()]
    if present:
        return present
    files = sorted(folder.glob("*.safetensors"))
    return [file for file in files if not file.name.endswith("consolidated.safetensors")]


def weight_bytes(folder: Path) -> int:
    """The size of the weight files; raises OSError."""
    return sum(file.stat().st_size for file in weight_files(folder))


def fingerprint(folder: Path) -> str:
    """Changes when weights or configuration do, and stays when the folder is moved, or copied with
    the times of its files. Raises OSError.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in CONFIGURATIONS:
        path = folder / name
        digest.update(path.read_bytes() if path.is_file() else b"")
        digest.update(b"\0")
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(f"{path.name}\0{_content_id(path)}\0".encode())
        _sample(path, digest)
    return digest.hexdigest()


def _content_id(path: Path) -> str:
    """What changes with the content of the file, of which there is too much to be read."""
    blob = path.resolve()
    # the hub's cache names files by their hash
    if blob.parent.name == "blobs" and BLOB.fullmatch(blob.name):
        return blob.name
    return str(path.stat().st_mtime_ns)


def _sample(path: Path, digest: hashlib.blake2b) -> None:
    """Tools that pack checkpoints may give all their files one time."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        digest.update(f"{size}\0".encode())
        for i in range(NUM_SAMPLES):
            file.seek(i * max(size - SAMPLE_BYTES, 0) // (NUM_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))


def read_header(path: Path) -> Mapping[str, Any]:
    """Tensor names -> type, shape and place in the file; empty if it is no safetensors file."""
    try:
        with path.open("rb") as file:
            num_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(num_bytes) if num_bytes < MAX_HEADER_BYTES else b"")
    except (OSError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
