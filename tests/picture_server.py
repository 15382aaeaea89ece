"""A web server on loopback, from which images are fetched, and what goes wrong with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[["Request"], None]


class Request(BaseHTTPRequestHandler):
    """Runs the answer of its path; other paths are 404."""

    server: PictureServer

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        self.server.headers.append(dict(self.headers))
        self.server.answers.get(self.path, status(404))(self)

    def start(self, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


class PictureServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answers = answers
        self.seen: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.is_closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def picture_server(answers: Mapping[str, Answer]) -> Iterator[PictureServer]:
    with PictureServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.is_closing.set()
            server.shutdown()
            thread.join()


def content(data: bytes, content_type: str = "image/png") -> Answer:
    def answer(request: Request) -> None:
        request.start(Content_Type=content_type, Content_Length=str(len(data)))
        request.wfile.write(data)

    return answer


def status(code: int) -> Answer:
    return lambda request: request.start(code, Content_Length="0")


def redirect(location: str) -> Answer:
    return lambda request: request.start(302, Location=location, Content_Length="0")


def hang(request: Request) -> None:
    """Say nothing until the test is over."""
    request.server.is_closing.wait()


def endless(request: Request) -> None:
    """A body that goes on for as long as somebody reads it."""
    request.start()
    try:
        while not request.server.is_closing.is_set():
            request.wfile.write(bytes(65536))
    except OSError:
        pass


def drip(request: Request) -> None:
    """One byte now and then, so that no read ever takes long."""
    request.start()
    try:
        while not request.server.is_closing.wait(0.02):
            request.wfile.write(b"x")
    except OSError:
        pass
