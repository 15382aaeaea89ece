"""The local Hugging Face cache, and downloads into it.

Only `Hub.download` opens connections. huggingface_hub reads its own environment variables (cache
folder, token, offline mode).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError: of its own client
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    XetDownloadError,
)
from huggingface_hub.utils import tqdm as hub_bar  # type: ignore[attr-defined]  # documented

from mlx_server.errors import ModelLoadFailed
from mlx_server.progress import Report

ALLOWED = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
IGNORED = ["original/*", "onnx/*", "consolidated*"]
PREFIX = "models--"
FIRST_ANSWER_S = 10.0
REPORT_S = 0.5
# HTTPError: the transport's own; RuntimeError: the Xet client's
DOWNLOAD_ERRORS = (OSError, HTTPError, ValueError, RuntimeError, XetDownloadError)


class Hub:
    """`with_code` also downloads Python files; `endpoint` is another hub than the usual one."""

    def __init__(
        self, folder: Path | None = None, *, with_code: bool = False, endpoint: str | None = None
    ) -> None:
        self._folder = folder or Path(constants.HF_HUB_CACHE)
        self._allowed = [*ALLOWED, "*.py"] if with_code else ALLOWED
        self._endpoint = endpoint

    def repos(self) -> list[str]:
        """The repositories that have a folder in the cache, complete or not."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return []
        parts = [name.split("--") for name in names if name.startswith(PREFIX)]
        return sorted(f"{owner}/{name}" for _, owner, name in (p for p in parts if len(p) == 3))

    def snapshots(self, repo: str) -> Iterator[Path]:
        """The folders of the repository's cached revisions: the main branch, then newest first."""
        folder = self._repo_folder(repo)
        main = None
        try:
            main = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
            yield main
        except (OSError, ValueError):
            pass
        try:
            revisions = [(path.stat().st_mtime, path) for path in (folder / "snapshots").iterdir()]
        except OSError:
            return
        yield from (path for _, path in sorted(revisions, reverse=True) if path != main)

    def download(self, repo: str, report: Report) -> Path:
        """Bring the main branch into the cache; raises ModelLoadFailed with the reason."""
        try:
            sizes = self._sizes(repo)
            with self._reporting(repo, sizes, report):
                folder = snapshot_download(
                    repo,
                    cache_dir=self._folder,
                    endpoint=self._endpoint,
                    allow_patterns=self._allowed,
                    ignore_patterns=IGNORED,
                    tqdm_class=_NoBar,
                )
        except DOWNLOAD_ERRORS as error:
            raise ModelLoadFailed(_reason(error)) from error
        return Path(folder)

    def _repo_folder(self, repo: str) -> Path:
        return self._folder / (PREFIX + repo.replace("/", "--"))

    def _sizes(self, repo: str) -> Mapping[str, int]:
        """Bytes of the files to have, by their names in the cache's folder of blobs.

        Does not wait longer than FIRST_ANSWER_S for a hub that is out of reach: timeouts of the
        client do not cover the look-up of the host.
        """
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                api = HfApi(endpoint=self._endpoint)
                answer.set_result(api.model_info(repo, files_metadata=True, timeout=FIRST_ANSWER_S))
            except DOWNLOAD_ERRORS as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="hub", daemon=True).start()
        files = answer.result(timeout=FIRST_ANSWER_S).siblings or ()
        return {
            (file.lfs.sha256 if file.lfs else file.blob_id): file.size or 0
            for file in files
            if _matches(file.rfilename, self._allowed) and not _matches(file.rfilename, IGNORED)
        }

    @contextmanager
    def _reporting(self, repo: str, sizes: Mapping[str, int], report: Report) -> Iterator[None]:
        blobs, total = self._repo_folder(repo) / "blobs", sum(sizes.values())
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(REPORT_S):
                report("download", min(_num_bytes(blobs, sizes), total), total)

        watcher = threading.Thread(target=watch, name="download", daemon=True)
        report("download", min(_num_bytes(blobs, sizes), total), total)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        report("download", total, total)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _num_bytes(blobs: Path, sizes: Mapping[str, int]) -> int:
    """What is there of the wanted files; a file under way has more in its name than its hash."""
    try:
        present = [(path.name.split(".")[0], path.stat().st_size) for path in blobs.iterdir()]
    except OSError:
        return 0
    return sum(size for name, size in present if name in sizes)


class _NoBar(hub_bar):
    """huggingface_hub's own bars would be drawn over ours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]


def _reason(error: Exception) -> str:
    if isinstance(error, GatedRepoError):
        return (
            "The model's licence has to be accepted on the hub first. Do that in a browser, then "
            "log in with `hf auth login`."
        )
    if isinstance(error, RepositoryNotFoundError):
        return "The hub has no such repository, or none that may be read without logging in."
    if isinstance(error, HfHubHTTPError):
        return f"The model hub answered with status {error.response.status_code}. Try again later."
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "The model does not fit on the disk. Make room and try again."
    if isinstance(error, OfflineModeIsEnabled):
        return "The model is not on this machine, and the hub is switched off by HF_HUB_OFFLINE."
    if isinstance(error, LocalEntryNotFoundError | TimeoutError | HTTPError):
        return (
            "The model is not on this machine, and the hub that has it cannot be reached. Check "
            "the network, or name a model that is here."
        )
    return "The download of the model broke off. Try again."
