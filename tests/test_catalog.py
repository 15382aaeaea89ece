import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from mlx_server.catalog import Catalog, ModelEntry
from mlx_server.config import ServerConfig
from mlx_server.errors import ModelLoadFailed, ModelNotFound
from mlx_server.hub import Hub
from tests.checkpoint_folders import LLAMA, write_cached, write_checkpoint
from tests.no_network import forbid_sockets

GEMMA = "mlx-community/gemma-3-4b-it-4bit"
QWEN = "mlx-community/Qwen3-VL-4B-Instruct-4bit"
BUILT_IN_IDS = (GEMMA, QWEN, "smollm2")


def make_catalog(
    tmp_path: Path, *models: str | Path, aliases: Mapping[str, str] | None = None
) -> Catalog:
    config = ServerConfig(
        models=tuple(map(str, models)) or ("gemma",),
        aliases=aliases or {},
        cache_dir=tmp_path / "own",
    )
    return Catalog.from_config(config, hub=Hub(tmp_path / "hub"))


def ids(catalog: Catalog) -> list[str]:
    return [entry.id for entry in catalog.list() if entry.id not in BUILT_IN_IDS]


def ignore(stage: str, done: int, total: int) -> None: ...


def test_b118_a_local_model_answers_to_path_basename_alias_and_no_name(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m" / "qwen-4b")
    catalog = make_catalog(tmp_path, path, aliases={"mine": str(path)})
    for name in (str(path), "qwen-4b", "QWEN-4b", "mine", None, ""):
        assert catalog.resolve(name).id == "qwen-4b"
    entry = catalog.resolve(None)
    assert entry.aliases == ("mine",)
    assert catalog.local_path(entry) == path


def test_b118_a_relative_path_answers_to_itself_and_its_absolute_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "m" / "qwen-4b")
    monkeypatch.chdir(tmp_path)
    catalog = make_catalog(tmp_path, "./m/qwen-4b/")
    for name in ("./m/qwen-4b/", str(path), "qwen-4b"):
        assert catalog.resolve(name).id == "qwen-4b"
    with pytest.raises(ModelNotFound):
        catalog.resolve("./m/../m/qwen-4b/")


def test_an_entry_says_what_the_checkpoint_says(tmp_path: Path) -> None:
    config = {**LLAMA, "vision_config": {"depth": 1}}
    path = write_checkpoint(tmp_path / "eyes", config, chat_template__jinja="{{ messages }}")
    assert make_catalog(tmp_path, path).resolve("eyes") == ModelEntry(
        id="eyes",
        aliases=(),
        created=int((path / "config.json").stat().st_mtime),
        owned_by="local",
        capabilities=("completion", "vision", "tools"),
        context_length=4096,
        is_cached=True,
        source=make_catalog(tmp_path, path).resolve("eyes").source,
    )


def test_a_model_without_a_template_only_completes(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "plain")
    assert make_catalog(tmp_path, path).resolve("plain").capabilities == ("completion",)


def test_the_default_is_the_first_model_and_leads_the_list(tmp_path: Path) -> None:
    first, second = (write_checkpoint(tmp_path / name) for name in ("zz", "aa"))
    catalog = make_catalog(tmp_path, first, second)
    assert catalog.resolve("").id == "zz"
    assert [entry.id for entry in catalog.list()] == ["zz", "aa", *BUILT_IN_IDS]


def test_folders_of_one_name_are_told_apart_by_their_parents(tmp_path: Path) -> None:
    paths = [write_checkpoint(tmp_path / p) for p in ("a/llm", "b/llm", "c/b/llm")]
    catalog = make_catalog(tmp_path, *paths)
    assert ids(catalog) == ["llm", "b/llm", "llm-2"]
    for path, name in zip(paths, ids(catalog), strict=True):
        assert catalog.local_path(catalog.resolve(name)) == path
        assert catalog.local_path(catalog.resolve(str(path))) == path


def test_the_same_model_given_twice_is_one(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "llm")
    assert ids(make_catalog(tmp_path, path, path, aliases={"x": str(path)})) == ["llm"]


def test_built_in_aliases_name_models_that_are_not_here_yet(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path)
    assert {name: catalog.resolve(name).id for name in ("gemma", "qwen", "smollm2", None)} == {
        "gemma": GEMMA,
        "qwen": QWEN,
        "smollm2": "smollm2",
        None: GEMMA,
    }
    gemma = catalog.resolve("gemma")
    assert gemma.aliases == ("gemma",)
    assert not gemma.is_cached
    assert catalog.local_path(gemma) is None
    assert "vision" in gemma.capabilities


def test_an_operators_alias_wins_over_a_built_in_one(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "other")
    catalog = make_catalog(tmp_path, "gemma", aliases={"gemma": str(path)})
    assert catalog.resolve("gemma").id == "other"
    assert catalog.resolve(None).id == "other"
    assert catalog.resolve(GEMMA).aliases == ()


def test_a_given_folder_wins_over_a_built_in_alias(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "smollm2")
    catalog = make_catalog(tmp_path, path)
    assert catalog.local_path(catalog.resolve("smollm2")) == path
    assert [entry.id for entry in catalog.list()] == ["smollm2", GEMMA, QWEN]


def test_aliases_may_lead_to_aliases(tmp_path: Path) -> None:
    aliases = {"fast": "small", "small": "smollm2", "org/x": "org/x"}
    catalog = make_catalog(tmp_path, "fast", aliases=aliases)
    assert catalog.resolve("fast").id == "smollm2"
    assert catalog.resolve("smollm2").aliases == ("fast", "small")
    assert catalog.resolve("org/x").id == "org/x"


def test_aliases_in_a_circle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadFailed, match="circle"):
        make_catalog(tmp_path, aliases={"a": "b", "b": "c", "c": "b"})


def test_cached_repositories_are_available_by_their_id(tmp_path: Path) -> None:
    folder = write_cached(tmp_path / "hub", "org/Model-1")
    catalog = make_catalog(tmp_path)
    assert ids(catalog) == ["org/Model-1"]
    entry = catalog.resolve("org/Model-1")
    assert entry.owned_by == "org"
    assert entry.is_cached
    assert catalog.local_path(entry) == folder
    assert catalog.ensure_local(entry, ignore) == folder


def test_a_configured_repository_in_the_cache_is_listed_once(tmp_path: Path) -> None:
    write_cached(tmp_path / "hub", "org/m")
    assert ids(make_catalog(tmp_path, "org/m")) == ["org/m"]


def test_another_spelling_finds_a_cached_repository_only_without_doubt(tmp_path: Path) -> None:
    write_cached(tmp_path / "hub", "org/Model")
    assert make_catalog(tmp_path).resolve("ORG/model").id == "org/Model"
    write_cached(tmp_path / "hub", "org/MODEL")
    catalog = make_catalog(tmp_path)
    assert catalog.resolve("org/MODEL").id == "org/MODEL"
    with pytest.raises(ModelNotFound):
        catalog.resolve("org/model")


def test_incomplete_broken_and_foreign_repositories_are_left_out(tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    write_cached(hub, "org/good")
    (write_cached(hub, "org/no-weights") / "model.safetensors").unlink()
    (write_cached(hub, "org/no-tokenizer") / "tokenizer.json").unlink()
    write_cached(hub, "org/broken", config__json="{")
    write_cached(hub, "org/whisper", {"model_type": "whisper"})
    write_cached(hub, "org/bert", {"model_type": "bert"})
    (hub / "models--org--empty").mkdir()
    (hub / "models--odd").mkdir()
    (hub / "datasets--org--data").mkdir()
    (hub / "models--org--file").write_text("no folder")
    (hub / "version.txt").write_text("1")
    catalog = make_catalog(tmp_path)
    assert ids(catalog) == ["org/good"]
    for name in ("org/no-weights", "org/broken", "org/whisper", "org/empty", "org/file"):
        with pytest.raises(ModelNotFound):
            catalog.resolve(name)


def test_a_download_that_gets_finished_is_seen(tmp_path: Path) -> None:
    folder = write_cached(tmp_path / "hub", "org/m")
    (folder / "model.safetensors").unlink()
    catalog = make_catalog(tmp_path)
    assert ids(catalog) == []
    (folder / "model.safetensors").touch()
    assert ids(catalog) == ["org/m"]
    assert catalog.resolve("org/m").is_cached


def test_a_model_that_goes_away_is_no_longer_there(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "llm")
    catalog = make_catalog(tmp_path, path)
    assert catalog.resolve("llm").is_cached
    (path / "config.json").unlink()
    entry = catalog.resolve("llm")
    assert not entry.is_cached
    assert catalog.local_path(entry) is None


@pytest.mark.parametrize(
    "name",
    [
        "org/absent",
        "absent",
        "nul\0",
        "..",
        "../m",
        "/etc/passwd",
        "org/../org/m",
        "org/m/",
        "models--org--m",
        "\ud800",
        "x" * 100_000,
    ],
    ids=lambda name: ascii(name[:20]),
)
def test_other_names_are_unknown(tmp_path: Path, name: str) -> None:
    write_cached(tmp_path / "hub", "org/m")
    with pytest.raises(ModelNotFound):
        make_catalog(tmp_path).resolve(name)


def test_a_path_that_was_not_given_at_start_is_unknown(tmp_path: Path) -> None:
    given, other = (write_checkpoint(tmp_path / name) for name in ("given", "other"))
    with pytest.raises(ModelNotFound):
        make_catalog(tmp_path, given).resolve(str(other))


def test_a_relative_folder_is_not_taken_for_a_requested_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / "org" / "m")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound):
        make_catalog(tmp_path).resolve("org/m")


def test_b120_nothing_but_a_download_opens_a_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "llm")
    forbid_sockets(monkeypatch)
    catalog = make_catalog(tmp_path, path)
    assert not (tmp_path / "hub").exists()
    assert ids(catalog) == ["llm"]
    assert catalog.ensure_local(catalog.resolve("llm"), ignore) == path
    cached = write_cached(tmp_path / "hub", "org/m")
    assert catalog.local_path(catalog.resolve("org/m")) == cached
    assert catalog.local_path(catalog.resolve("gemma")) is None
    with pytest.raises(ModelNotFound):
        catalog.resolve("org/absent")


def test_a_request_by_a_configured_name_does_not_look_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_checkpoint(tmp_path / "llm")
    catalog = make_catalog(tmp_path, path)
    monkeypatch.setattr(Hub, "repos", lambda self: pytest.fail("the cache was listed"))
    assert catalog.resolve("llm").id == "llm"


def test_an_unchanged_checkpoint_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cached(tmp_path / "hub", "org/m")
    catalog = make_catalog(tmp_path)
    before = catalog.list()
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("a file was read"))
    assert catalog.list() == before


def test_a_given_folder_that_is_no_checkpoint_says_what_it_lacks(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "llm")
    (path / "tokenizer.json").unlink()
    catalog = make_catalog(tmp_path, path)
    with pytest.raises(ModelLoadFailed, match="lacks a tokenizer"):
        catalog.ensure_local(catalog.resolve(None), ignore)


def test_a_name_that_means_nothing_says_so_when_it_is_needed(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path, "gemna")
    with pytest.raises(ModelLoadFailed, match="no folder, repository or alias"):
        catalog.ensure_local(catalog.resolve(None), ignore)


def test_the_embedded_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def ensure(cache_dir: Path, report: object) -> Path:
        made.append(cache_dir)
        return write_checkpoint(cache_dir / "smollm2", chat_template__jinja="{{ messages }}")

    module = ModuleType("mlx_server.embedded")
    monkeypatch.setattr(module, "ensure_smollm2", ensure, raising=False)
    monkeypatch.setitem(sys.modules, "mlx_server.embedded", module)
    catalog = make_catalog(tmp_path, "smollm2")
    assert not catalog.resolve(None).is_cached
    for _ in range(2):
        assert catalog.ensure_local(catalog.resolve(None), ignore) == tmp_path / "own" / "smollm2"
    assert made == [tmp_path / "own"]
    assert catalog.resolve(None).capabilities == ("completion", "tools")


def test_a_catalog_without_models_has_no_default(tmp_path: Path) -> None:
    catalog = Catalog.from_config(ServerConfig(models=()), hub=Hub(tmp_path))
    with pytest.raises(ModelNotFound):
        catalog.resolve(None)


def test_an_alias_may_name_a_model_given_at_start_by_its_folder(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "llm")
    catalog = make_catalog(tmp_path, path, aliases={"eyes": "llm"})
    assert catalog.resolve("eyes").id == "llm"
    assert "eyes" in catalog.resolve("llm").aliases
