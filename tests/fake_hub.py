"""A model hub on loopback that has one repository, as much of it as a download asks for."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.checkpoint_folders import REVISION


class FakeHub(ThreadingHTTPServer):
    """Answers 404 like the hub for other repositories, and `status` for everything if it is set."""

    daemon_threads = True

    def __init__(self, repo: str, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo = repo
        self.files = files
        self.status: int | None = None
        self.error_code = ""
        self.downloaded: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def fake_hub(repo: str, files: Mapping[str, bytes]) -> Iterator[FakeHub]:
    with FakeHub(repo, files) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        api, tree = f"/api/models/{hub.repo}", f"/api/models/{hub.repo}/tree/{REVISION}"
        content = f"/{hub.repo}/resolve/{REVISION}/"
        if hub.status is not None:
            self._answer(hub.status, b"{}", **{"X-Error-Code": hub.error_code})
        elif path in (api, f"{api}/revision/main"):
            self._answer(200, json.dumps(self._info()).encode())
        elif path == tree:
            self._answer(200, json.dumps(self._tree()).encode())
        elif path.startswith(content) and path.removeprefix(content) in hub.files:
            self._send_file(path.removeprefix(content))
        else:
            self._answer(404, b"{}", **{"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def _info(self) -> dict[str, object]:
        siblings = [
            {"rfilename": name, "size": len(data), "blobId": _git_hash(data)}
            for name, data in self.server.files.items()
        ]
        return {"id": self.server.repo, "sha": REVISION, "siblings": siblings}

    def _tree(self) -> list[dict[str, object]]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _git_hash(data)}
            for name, data in self.server.files.items()
        ]

    def _send_file(self, name: str) -> None:
        data = self.server.files[name]
        if self.command == "GET":
            self.server.downloaded.append(name)
        headers = {"ETag": f'"{_git_hash(data)}"', "X-Repo-Commit": REVISION}
        self._answer(200, data, **headers)

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def _git_hash(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
