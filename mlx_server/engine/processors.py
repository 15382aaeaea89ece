"""Tokenizers and image processors of checkpoints, kept across swaps.

Reading them takes as long as reading the weights of a small model, and they hold a few megabytes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlx_vlm.utils import load_image_processor, load_processor

from mlx_server.engine.grammar import GrammarVocabulary
from mlx_server.engine.token_text import TokenText

MAX_KEPT = 4
Stamp = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Processor:
    """A checkpoint's processor, whose tokenizer it is itself for models that only read text."""

    processor: Any
    token_text: TokenText
    vocabulary: GrammarVocabulary


class Processors:
    """The last few; one is read again when a file of its folder has changed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, bool], tuple[Stamp, Processor]] = OrderedDict()

    def get(self, path: Path, model: Any, *, trust_remote_code: bool) -> Processor:
        key, stamp = (path, trust_remote_code), _stamp(path)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == stamp:
            self._kept.move_to_end(key)
            return kept[1]
        found = _read(path, model, trust_remote_code=trust_remote_code)
        self._kept[key] = (stamp, found)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return found


def _stamp(path: Path) -> Stamp:
    """Names, sizes and times of all but the weights."""
    files = [file for file in path.iterdir() if file.suffix != ".safetensors"]
    stats = [(file.name, file.stat()) for file in sorted(files)]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def _read(path: Path, model: Any, *, trust_remote_code: bool) -> Processor:
    eos_token_ids = getattr(model.config, "eos_token_id", None)
    processor = load_processor(
        path, True, eos_token_ids=eos_token_ids, trust_remote_code=trust_remote_code
    )
    image_processor = load_image_processor(path, trust_remote_code=trust_remote_code)
    if image_processor is not None:
        processor.image_processor = image_processor
    tokenizer = getattr(processor, "tokenizer", processor)
    return Processor(processor, TokenText(tokenizer), GrammarVocabulary(tokenizer))
