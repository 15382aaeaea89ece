"""Models are found without the disk where that is possible, and in the order of the questions."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from mlx_server.catalog import Catalog, ModelEntry
from mlx_server.config import ServerConfig
from mlx_server.engine.model_lookup import ModelLookup
from mlx_server.errors import ModelLoadFailed, ModelNotFound
from mlx_server.hub import Hub
from tests.checkpoint_folders import write_cached, write_checkpoint
from tests.engine_harness import go
from tests.patience import HANG_S


class SlowDisk(Catalog):
    """Answers when the gate of the name is open."""

    gates: dict[str | None, threading.Event]

    def resolve(self, name: str | None) -> ModelEntry:
        if name in self.gates:
            self.gates[name].wait(HANG_S)
        return super().resolve(name)


def make_catalog(folder: Path) -> SlowDisk:
    paths = [write_checkpoint(folder / name) for name in ("a", "b")]
    config = ServerConfig(
        models=tuple(map(str, paths)), aliases={"short": str(paths[0])}, cache_dir=folder / "own"
    )
    catalog = SlowDisk.from_config(config, hub=Hub(folder / "hub"))
    assert isinstance(catalog, SlowDisk)
    catalog.gates = {}
    return catalog


def test_the_loaded_model_is_found_by_all_its_names_while_the_disk_is_asleep(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        catalog = make_catalog(tmp_path)
        lookup = ModelLookup(catalog)
        lookup.locate("a")
        names = ("a", "short", str(tmp_path / "a"), None, "")
        catalog.gates = dict.fromkeys(names, threading.Event())
        for name in names:
            assert (await lookup.find(name, "a")).id == "a"

    go(main())


def test_the_loop_goes_on_while_a_disk_takes_its_time_and_questions_keep_their_order(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        catalog = make_catalog(tmp_path)
        lookup = ModelLookup(catalog)
        lookup.locate("a")
        gate = catalog.gates["b"] = threading.Event()
        answered: list[str] = []

        async def ask(name: str) -> None:
            answered.append((await lookup.find(name, "a")).id)

        waiting = [asyncio.create_task(ask(name)) for name in ("b", "B")]
        await asyncio.sleep(0)
        await ask("a")
        assert answered == ["a"]
        gate.set()
        await asyncio.gather(*waiting)
        assert answered == ["a", "b", "b"]

    go(main())


def test_a_loaded_model_whose_folder_has_gone_is_still_there(tmp_path: Path) -> None:
    async def main() -> None:
        folder = write_cached(tmp_path / "hub", "org/m")
        catalog = make_catalog(tmp_path)
        lookup = ModelLookup(catalog)
        assert lookup.locate("org/m") == folder
        entry = await lookup.find("org/m", None)
        shutil.rmtree(tmp_path / "hub")

        assert await lookup.find("org/m", "org/m") == entry
        assert entry.is_cached
        with pytest.raises(ModelNotFound):
            await lookup.find("org/m", "a")

    go(main())


def test_what_is_not_on_this_machine_cannot_be_located(tmp_path: Path) -> None:
    lookup = ModelLookup(make_catalog(tmp_path))
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(ModelLoadFailed):
        lookup.locate("a")
