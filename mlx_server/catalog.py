"""Which models exist, under which names, and where their checkpoints are.

Only `ensure_local` opens connections. No method makes a path of a name that a request brings.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlx_server.checkpoint import CheckpointFacts
from mlx_server.checkpoint_files import missing_file
from mlx_server.config import ServerConfig
from mlx_server.errors import ModelLoadFailed, ModelNotFound
from mlx_server.hub import Hub
from mlx_server.known_checkpoints import KnownCheckpoints
from mlx_server.model_names import ModelNames
from mlx_server.model_sources import BUILT_IN_ALIASES, Embedded, Folder, HubRepo, Source
from mlx_server.progress import Report

MAX_NAME_LENGTH = 512


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model as clients see it; `is_cached` says that its checkpoint is on this machine.

    `capabilities` are of "completion", "vision" and "tools"; `created` is a Unix time.
    """

    id: str
    aliases: tuple[str, ...]
    created: int
    owned_by: str
    capabilities: tuple[str, ...]
    context_length: int | None
    is_cached: bool
    source: Source


@dataclass(frozen=True, slots=True)
class _Traits:
    capabilities: tuple[str, ...]
    context_length: int | None


# What can be said of a model before its checkpoint is here.
UNSEEN = _Traits(("completion",), None)
BUILT_IN_TRAITS: Mapping[Source, _Traits] = {
    BUILT_IN_ALIASES["gemma"]: _Traits(("completion", "vision", "tools"), 131072),
    BUILT_IN_ALIASES["qwen"]: _Traits(("completion", "vision", "tools"), 262144),
    BUILT_IN_ALIASES["smollm2"]: _Traits(("completion", "tools"), 8192),
}


class Catalog:
    """The operator's models, the built-in ones and those in the local Hugging Face cache."""

    def __init__(self, names: ModelNames, hub: Hub, embedded_dir: Path) -> None:
        self._names = names
        self._hub = hub
        self._embedded_dir = embedded_dir
        self._checkpoints = KnownCheckpoints()
        self._started = int(time.time())

    @classmethod
    def from_config(cls, config: ServerConfig, *, hub: Hub | None = None) -> Catalog:
        """Raises ModelLoadFailed for aliases that lead in a circle."""
        return cls(
            ModelNames(config.models, config.aliases),
            hub or Hub(with_code=config.engine.trust_remote_code),
            config.cache_dir,
        )

    def resolve(self, name: str | None) -> ModelEntry:
        """The model of that name, the default without one; upper and lower case may differ if that
        leaves no doubt. Raises ModelNotFound.
        """
        source = self._names.default if not name else self._find(name)
        if source is None:
            raise ModelNotFound()
        return self._entry(source)

    def id_without_disk(self, name: str) -> str:
        """The id of the model that has exactly this name; what no table knows is taken for one."""
        source = self._names.find(name)
        return name if source is None else self._names.id_of(source) or name

    def list(self) -> tuple[ModelEntry, ...]:
        """Everything that `resolve` finds, the default first."""
        cached = (
            source
            for source in map(HubRepo, self._hub.repos())
            if self._names.id_of(source) is None and self._is_available(source)
        )
        return tuple(self._entry(source) for source in (*self._names.sources, *cached))

    def local_path(self, entry: ModelEntry) -> Path | None:
        """The complete checkpoint on this machine, if there is one."""
        return self._path(entry.source)

    def ensure_local(self, entry: ModelEntry, report: Report) -> Path:
        """Blocks while the model is fetched, if it has to be; raises ModelLoadFailed."""
        path = self._path(entry.source)
        if path is None:
            folder = self._fetch(entry.source, report)
            path = self._path(entry.source)
        if path is None:
            lack = missing_file(folder) or "a config.json that can be read"
            raise ModelLoadFailed(f"The model's checkpoint lacks {lack}.")
        return path

    def _find(self, name: str) -> Source | None:
        if len(name) > MAX_NAME_LENGTH:
            return None
        source = self._names.find(name)
        if source is not None:
            return source
        folded = name.casefold()
        cached = [repo for repo in self._hub.repos() if repo.casefold() == folded]
        if name in cached and self._is_available(HubRepo(name)):
            return HubRepo(name)
        candidates = self._names.find_folded(name)
        candidates |= {source for source in map(HubRepo, cached) if self._is_available(source)}
        return candidates.pop() if len(candidates) == 1 else None

    def _is_available(self, source: HubRepo) -> bool:
        facts = self._facts(source)
        return facts is not None and facts.is_generator

    def _facts(self, source: Source) -> CheckpointFacts | None:
        path = self._path(source)
        return None if path is None else self._checkpoints.facts(path)

    def _path(self, source: Source) -> Path | None:
        complete = (p for p in self._places(source) if self._checkpoints.facts(p) is not None)
        return next(complete, None)

    def _places(self, source: Source) -> Iterator[Path]:
        match source:
            case Folder(path):
                yield path
            case HubRepo(repo):
                yield from self._hub.snapshots(repo)
            case Embedded(name):
                yield self._embedded_dir / name

    def _fetch(self, source: Source, report: Report) -> Path:
        match source:
            case HubRepo(repo):
                return self._hub.download(repo, report)
            case Embedded():
                from mlx_server.embedded import ensure_smollm2

                return ensure_smollm2(self._embedded_dir, report)
            case Folder(path):
                if not path.is_dir():
                    raise ModelLoadFailed("There is no folder, repository or alias of that name.")
                return path

    def _entry(self, source: Source) -> ModelEntry:
        path = self._path(source)
        facts = None if path is None else self._checkpoints.facts(path)
        traits = BUILT_IN_TRAITS.get(source, UNSEEN) if facts is None else _traits(facts)
        return ModelEntry(
            id=self._names.id_of(source) or _repo_of(source),
            aliases=self._names.aliases_of(source),
            created=self._created(path),
            owned_by=_owner(source),
            capabilities=traits.capabilities,
            context_length=traits.context_length,
            is_cached=path is not None,
            source=source,
        )

    def _created(self, path: Path | None) -> int:
        try:
            return self._started if path is None else int((path / "config.json").stat().st_mtime)
        except OSError:
            return self._started


def _traits(facts: CheckpointFacts) -> _Traits:
    """Tools need nothing of a chat model: without a place in its template they go into the
    prompt.
    """
    given = {
        "completion": facts.is_generator,
        "vision": facts.has_vision,
        "tools": facts.is_generator and facts.chat_template is not None,
    }
    return _Traits(
        tuple(name for name, is_given in given.items() if is_given), facts.context_length
    )


def _repo_of(source: Source) -> str:
    assert isinstance(source, HubRepo), "every other source has an id from the start"
    return source.repo


def _owner(source: Source) -> str:
    match source:
        case HubRepo(repo):
            return repo.partition("/")[0]
        case Embedded():
            return "HuggingFaceTB"
        case Folder():
            return "local"
