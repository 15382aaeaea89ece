"""Speaks HTTP as the router one-api does: raw requests, and what it makes of the answers.

Blocking sockets of the standard library, since a client library would mend the framing.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.patience import HANG_S

CHAT = "/v1/chat/completions"

# The router's scanner gives up on a line that, with its end, is as long as this.
MAX_LINE_BYTES = 64 * 1024


def head(
    path: str = CHAT,
    *,
    key: str = "sk-test",
    accept: str = "",
    content_type: str = "application/json",
) -> bytes:
    """Up to where the framing header follows; `Accept` is sent though it is empty."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "User-Agent: Go-http-client/1.1",
        f"Accept: {accept}",
        f"Authorization: Bearer {key}",
        f"Content-Type: {content_type}",
        "Accept-Encoding: gzip",
    )
    return "".join(f"{line}\r\n" for line in lines).encode()


def chunked(body: bytes, size: int | None = None, *, extension: bytes = b"") -> bytes:
    """The body in chunks of `size` bytes; `None` makes one chunk, whatever its length."""
    size = size or max(len(body), 1)
    pieces = (body[start : start + size] for start in range(0, len(body), size))
    return b"".join(chunk(piece, extension=extension) for piece in pieces) + b"0\r\n\r\n"


def chunk(data: bytes, *, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def passthrough(path: str, payload: Mapping[str, Any], **head_fields: str) -> bytes:
    """Where the router maps no model name, it hands the client's body on without a length."""
    body = json.dumps(payload).encode()
    return head(path, **head_fields) + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body)


def converted(path: str, payload: Mapping[str, Any], **head_fields: str) -> bytes:
    """Where the router rewrites the body, it knows the length."""
    body = json.dumps(payload, separators=(",", ":")).encode()
    return head(path, **head_fields) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def channel_test(model: str) -> bytes:
    """What the router's test button and its periodic check send; there is no limit of tokens."""
    prompt = "Output only your specific model name with no additional text."
    return converted(CHAT, {"messages": [{"role": "user", "content": prompt}], "model": model})


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Connection:
    """One kept-alive connection; responses are read off it in the order of the requests."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=HANG_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes) -> Response:
        self.send(data)
        return self.response()

    def response(self) -> Response:
        """The next response; raises ConnectionError when the server has closed instead."""
        status_line = self._line()
        headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return Response(int(status_line.split()[1]), headers, self._body(headers))

    def line(self) -> str:
        """One line of the answer, as it arrives."""
        return self._line()

    def rest(self) -> bytes:
        """All that follows until the server closes, without the lines that frame chunks."""
        lines = self._reader.read().split(b"\r\n")
        return b"".join(line for line in lines if not re.fullmatch(rb"[0-9a-f]*", line))

    @property
    def is_closed(self) -> bool:
        """Wait until the server closes; False if it sends something instead."""
        try:
            return self._reader.read(1) == b""
        except ConnectionResetError:
            return True

    def _line(self) -> str:
        line = self._reader.readline()
        if not line:
            raise ConnectionError("the server has closed the connection")
        return line.decode().rstrip("\r\n")

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self._line(), 16):
                body += self._reader.read(size)
                self._line()
            self._line()
            return body
        if "content-length" in headers:
            return self._reader.read(int(headers["content-length"]))
        # Without framing the body ends with the connection; an interim answer has none.
        return self._reader.read() if headers.get("connection") == "close" else b""


@dataclass
class Relayed:
    """What the router makes of a stream: lines its user gets, lines it drops, what it bills."""

    forwarded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] | None = None
    is_broken: bool = False


def relay_stream(body: bytes) -> Relayed:
    relayed = Relayed()
    for raw_line in body.split(b"\n"):
        if len(raw_line) + 1 >= MAX_LINE_BYTES:
            relayed.is_broken = True
            break
        if line := raw_line.decode().removesuffix("\r"):
            relay_line(line, relayed)
    return relayed


def relay_line(line: str, relayed: Relayed) -> None:
    if not line.startswith("data: "):
        relayed.dropped.append(line)
        return
    if line.startswith("data: [DONE]"):
        relayed.forwarded.append(line)
        return
    event = json.loads(line.removeprefix("data: "))
    choices = event.get("choices") or []
    if not choices and event.get("usage") is None:
        relayed.dropped.append(line)
        return
    relayed.forwarded.append(line)
    relayed.text += "".join(choice["delta"].get("content") or "" for choice in choices)
    relayed.usage = event.get("usage") or relayed.usage
