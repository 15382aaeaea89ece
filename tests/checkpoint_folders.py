"""Checkpoint folders that look right and hold no weights, alone or inside a Hugging Face cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REVISION = "0123456789abcdef0123456789abcdef01234567"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 4096,
}


def write_checkpoint(folder: Path, config: dict[str, Any] | None = None, **files: Any) -> Path:
    """`files` are written beside the usual ones: name with __ for the dot -> object or text."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA if config is None else config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    for key, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / key.replace("__", ".")).write_text(text)
    return folder


def write_cached(
    cache: Path,
    repo: str,
    config: dict[str, Any] | None = None,
    *,
    revision: str = REVISION,
    is_main: bool = True,
    **files: Any,
) -> Path:
    """The snapshot's folder inside `cache`."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    if is_main:
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / "main").write_text(revision)
    return write_checkpoint(folder / "snapshots" / revision, config, **files)


def write_safetensors(path: Path, *names: str) -> None:
    """A weight file whose header names tensors of no elements."""
    tensor = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({name: tensor for name in names}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
