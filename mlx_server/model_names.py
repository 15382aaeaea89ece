"""The names under which requests may ask for the models the operator gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mlx_server.model_sources import (
    BUILT_IN_ALIASES,
    Embedded,
    Folder,
    HubRepo,
    Source,
    absolute_path,
    parse_source,
)


class ModelNames:
    """`sources` are in the order of listing, the default first; every source has one id, which
    finds it.

    An operator's alias wins over an id, an id over a built-in alias.
    """

    def __init__(self, models: Sequence[str], aliases: Mapping[str, str]) -> None:
        given = {word: parse_source(word, aliases) for word in models}
        folders = {s.path.name: s for s in given.values() if isinstance(s, Folder)}
        aliased: dict[str, Source] = {
            name: folders.get(target) or parse_source(name, aliases)
            for name, target in aliases.items()
        }
        self.default = next(iter(given.values()), None)
        self._sources: dict[str, Source] = dict(aliased)
        self._ids: dict[Source, str] = {}
        for source in (*given.values(), *aliased.values()):
            self._name(source)
        for word, source in given.items():
            if isinstance(source, Folder):
                self._sources.setdefault(word, source)
                self._sources.setdefault(str(absolute_path(word)), source)
        for alias, source in BUILT_IN_ALIASES.items():
            self._add_built_in(alias, source)
        self._aliases = [*aliases, *BUILT_IN_ALIASES]

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._ids)

    def id_of(self, source: Source) -> str | None:
        return self._ids.get(source)

    def aliases_of(self, source: Source) -> tuple[str, ...]:
        names = dict.fromkeys(self._aliases)
        return tuple(
            name
            for name in names
            if self._sources.get(name) == source and name != self._ids.get(source)
        )

    def find(self, name: str) -> Source | None:
        return self._sources.get(name)

    def find_folded(self, name: str) -> set[Source]:
        """The sources that have `name` in another spelling of upper and lower case."""
        folded = name.casefold()
        return {source for word, source in self._sources.items() if word.casefold() == folded}

    def _name(self, source: Source) -> None:
        if source not in self._ids:
            self._ids[source] = next(
                name
                for name in _possible_ids(source)
                if self._sources.setdefault(name, source) == source
            )

    def _add_built_in(self, alias: str, source: Source) -> None:
        """A built-in model is left out if the operator uses all of its names for others."""
        if source not in self._ids and next(_possible_ids(source)) in self._sources:
            return
        self._name(source)
        self._sources.setdefault(alias, source)


def _possible_ids(source: Source) -> Iterator[str]:
    """Ids for a source, the best one first; without end."""
    match source:
        case Folder(path):
            plain = path.name or "model"
            yield plain
            yield f"{path.parent.name}/{plain}"
        case HubRepo(repo):
            plain = repo
            yield plain
        case Embedded(name):
            plain = name
            yield plain
    number = 2
    while True:
        yield f"{plain}-{number}"
        number += 1
