"""Answers, servers and models of which the tests of the benchmarks know what comes out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx_vlm.models.cache import KVCache

from benchmarks.client import Answer, ask


def answer_of(sent_at: float, ended_at: float, *, num_tokens: int) -> Answer:
    return Answer(sent_at, ended_at, usage={"completion_tokens": num_tokens})


def said(
    text: str, finish_reason: str | None, num_tokens: int, *, error: Mapping[str, Any] | None = None
) -> Answer:
    answer = answer_of(0.0, 1.0, num_tokens=num_tokens)
    answer.text, answer.finish_reason, answer.error = text, finish_reason, error
    return answer


async def ask_canned(reply: bytes) -> Answer:
    """What the client makes of a server that says `reply` and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        return await ask(server.sockets[0].getsockname()[1], {"stream": True}, timeout_s=10)


class CountingModel:
    """Notes how many tokens each of its runs had."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, ids: mx.array, cache: Any) -> SimpleNamespace:
        self.lengths.append(ids.shape[1])
        return SimpleNamespace(logits=mx.zeros((*ids.shape, 8)))
