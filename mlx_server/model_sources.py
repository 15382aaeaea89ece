"""Where a model comes from, and what the operator's words for one mean.

A request's words are never read here: they are only looked up in the tables that come of it.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlx_server.errors import ModelLoadFailed


@dataclass(frozen=True, slots=True)
class Folder:
    """A checkpoint folder that the operator named; `path` is absolute."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubRepo:
    """A repository of the Hugging Face hub, in the local cache or not."""

    repo: str


@dataclass(frozen=True, slots=True)
class Embedded:
    """The small model that the package brings itself, without the hub."""

    name: str


Source = Folder | HubRepo | Embedded

BUILT_IN_ALIASES: Mapping[str, Source] = {
    "gemma": HubRepo("mlx-community/gemma-3-4b-it-4bit"),
    "qwen": HubRepo("mlx-community/Qwen3-VL-4B-Instruct-4bit"),
    "smollm2": Embedded("smollm2"),
}
REPO = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)


def parse_source(word: str, aliases: Mapping[str, str]) -> Source:
    """What the operator means by `word`: an alias before a folder, a folder before a repository.

    Raises ModelLoadFailed for aliases that lead back to themselves.
    """
    seen: list[str] = []
    while word in aliases and aliases[word] != word:
        if word in seen:
            raise ModelLoadFailed("The aliases lead in a circle. Let one of them name a model.")
        seen.append(word)
        word = aliases[word]
    if word in BUILT_IN_ALIASES:
        return BUILT_IN_ALIASES[word]
    if REPO.fullmatch(word) and not Path(word, "config.json").is_file():
        return HubRepo(word)
    return Folder(absolute_path(word))


def absolute_path(word: str) -> Path:
    return Path(os.path.abspath(Path(word).expanduser()))
