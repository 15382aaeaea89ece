"""A small HTTP client that notes when every piece of text arrives.

Written on sockets, because it runs beside the server on the same cores and must cost little.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MAX_LINE = 1 << 24
Body = Mapping[str, Any]


class RequestFailed(Exception):
    """The server has answered, but not with 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:120]}")
        self.status = status


class NothingToMeasure(Exception):
    """The answer lacks what a figure is made from."""


@dataclass(slots=True)
class Answer:
    """What came back. `text_times` are the moments at which pieces of text arrived; all moments are
    of `time.perf_counter`.
    """

    sent_at: float
    ended_at: float = 0.0
    text: str = ""
    finish_reason: str | None = None
    error: Mapping[str, Any] | None = None
    """What a stream that had begun says of its failure."""
    usage: dict[str, Any] = field(default_factory=dict)
    text_times: list[float] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return self.ended_at - self.sent_at

    @property
    def first_text_s(self) -> float:
        """Raises NothingToMeasure, as all figures do that an answer may lack."""
        if not self.text_times:
            raise NothingToMeasure("an answer without text")
        return self.text_times[0] - self.sent_at

    @property
    def num_tokens(self) -> int:
        """Generated tokens; pieces of text where the server does not say."""
        count = self.usage.get("completion_tokens", self.usage.get("output_tokens"))
        return len(self.text_times) if count is None else int(count)

    @property
    def num_prompt_tokens(self) -> int:
        count = self.usage.get("prompt_tokens", self.usage.get("input_tokens"))
        if not count:
            raise NothingToMeasure("an answer that does not count the prompt's tokens")
        return int(count)

    @property
    def num_cached_tokens(self) -> int:
        details = self.usage.get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    @property
    def tokens_per_s(self) -> float:
        """Of the decoding alone: without the time to the first text."""
        if len(set(self.text_times)) < 2:
            raise NothingToMeasure("an answer in one piece")
        return (self.num_tokens - 1) / (self.text_times[-1] - self.text_times[0])

    def add(self, frame: Mapping[str, Any], now: float) -> bool:
        """Take in a frame of a stream or a whole answer; True if it brought text."""
        self.usage = dict(frame.get("usage") or self.usage)
        self.error = frame.get("error") or self.error
        has_text = False
        for choice in frame.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            part = choice.get("delta") or choice.get("message") or choice
            text = part.get("content") or part.get("reasoning") or part.get("text") or ""
            if text:
                self.text += text
                self.text_times.append(now)
                has_text = True
        return has_text


async def ask(
    port: int,
    body: Body,
    *,
    path: str = CHAT,
    timeout_s: float = 120.0,
    on_text: Callable[[], None] = lambda: None,
) -> Answer:
    """Send `body` and read the answer to its end; `on_text` is called for each piece of text.

    Raises RequestFailed, TimeoutError, OSError, or EOFError where the answer ends early. Cancelling
    it closes the connection, as a client does that leaves.
    """
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE)
        try:
            answer = Answer(sent_at=time.perf_counter())
            writer.write(encode_request("POST", path, json.dumps(with_usage(body)).encode()))
            async for line in answer_lines(reader):
                read_line(answer, line, on_text)
            answer.ended_at = time.perf_counter()
            return answer
        finally:
            writer.close()


async def get_json(port: int, path: str, *, timeout_s: float = 5.0) -> dict[str, Any]:
    """Raises as `ask` does, and ValueError where the answer is no JSON."""
    return await _exchange(port, encode_request("GET", path), timeout_s)


async def post_json(
    port: int, body: Body, *, path: str = CHAT, timeout_s: float = 120.0
) -> dict[str, Any]:
    """The whole of an answer that does not stream; raises as `get_json` does."""
    return await _exchange(port, encode_request("POST", path, json.dumps(body).encode()), timeout_s)


async def _exchange(port: int, request: bytes, timeout_s: float) -> dict[str, Any]:
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MAX_LINE)
        try:
            writer.write(request)
            text = b"\n".join([line async for line in answer_lines(reader)])
            value: dict[str, Any] = json.loads(text)
            return value
        finally:
            writer.close()


def with_usage(body: Body) -> Body:
    return {**body, "stream_options": {"include_usage": True}} if body.get("stream") else body


def encode_request(method: str, path: str, body: bytes = b"") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_line(answer: Answer, line: bytes, on_text: Callable[[], None]) -> None:
    """One line of an event stream, or the one line of a JSON answer."""
    content = line.removeprefix(b"data: ").strip()
    if content.startswith(b"{") and answer.add(json.loads(content), time.perf_counter()):
        on_text()


async def answer_lines(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The lines of an answer's body, whichever way its end is marked."""
    status, headers = await read_head(reader)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        pieces = chunks(reader)
    elif "content-length" in headers:
        pieces = exactly(reader, int(headers["content-length"]))
    else:
        pieces = to_the_end(reader)
    if status != 200:
        raise RequestFailed(status, b"".join([piece async for piece in pieces]).decode())
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def exactly(reader: asyncio.StreamReader, size: int) -> AsyncIterator[bytes]:
    yield await reader.readexactly(size)


async def to_the_end(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(1 << 16):
        yield piece
