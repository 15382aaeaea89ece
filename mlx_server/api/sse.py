"""Server-sent events: how a stream is framed, kept alive and ended. Knows no particular endpoint.

Routers in front of this server read line by line. A data line begins with `data: `, stays under
32 KiB and is never a bare error, which they would drop; they drop comments too, which is why those
are safe at any time.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mlx_server.api.error_handlers import error_body
from mlx_server.api.run import Run
from mlx_server.api.sink import SYSTEM_FINGERPRINT, EventSink
from mlx_server.api.wire_json import to_json
from mlx_server.engine.sequence import GenerationRequest, Progress, Started
from mlx_server.errors import GenerationFailed, ServerError

logger = logging.getLogger(__name__)

DONE = "data: [DONE]\n\n"

# A character takes up to six bytes in JSON: a piece of text and a group of logprobs fit one line.
MAX_TEXT_CHARS = 3000

# So far may a client be behind what is written, many thousands of tokens.
MAX_UNSENT_CHARS = 1 << 24


def pieces(text: str, max_chars: int = MAX_TEXT_CHARS) -> Sequence[str]:
    """`text` in pieces that fit a line; none for an empty text."""
    if 0 < len(text) <= max_chars:
        return (text,)
    return [text[at : at + max_chars] for at in range(0, len(text), max_chars)]


def comment(progress: Progress | None) -> str:
    """A sign of life for who waits, saying for what."""
    return f": {describe(progress)}\n\n"


def describe(progress: Progress | None) -> str:
    match progress:
        case Progress("queued", done, total):
            return f"queued {total - done}"
        case Progress("loading", done, total):
            return f"loading {100 * done // total}%" if total else "loading"
        case Progress("prefill", done, total):
            return f"prefill {done}/{total}"
    return "keep-alive"


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Whether a chunk with the usage ends the stream; if asked for, all others have a null."""

    is_asked_for: bool
    is_sent: bool


class FrameSink(EventSink):
    """Turns events into frames that wait to be sent."""

    def __init__(self, answer_id: str, requests: Sequence[GenerationRequest]) -> None:
        super().__init__(answer_id, requests)
        self._frames: list[str] = []
        self._num_unsent_chars = 0

    @abstractmethod
    def finish(self) -> None:
        """Write what comes behind the last event."""

    @abstractmethod
    def fail(self, error: ServerError) -> None:
        """Write what ends a stream that has begun and cannot go on."""

    def sign_of_life(self, progress: Progress | None) -> str:
        """What is sent while there is nothing to send."""
        return comment(progress)

    def write(self, frame: str) -> None:
        """Append a frame; raises GenerationFailed if the client is too far behind."""
        self._frames.append(frame)
        self._num_unsent_chars += len(frame)
        if self._num_unsent_chars > MAX_UNSENT_CHARS:
            raise GenerationFailed("The stream was read too slowly. Ask for a shorter answer.")

    def take(self) -> bytes:
        """The frames since the last call, for sending."""
        body = "".join(self._frames)
        self._frames.clear()
        self._num_unsent_chars = 0
        return body.encode(errors="replace")


class ChunkSink(FrameSink):
    """Writes chunks, all of one id, created and model, and `[DONE]` behind them.

    What never changes between two chunks is written once, when the model is known; a chunk is then
    put together from strings, since this runs for every token of every stream.
    """

    object: str

    def __init__(
        self, answer_id: str, requests: Sequence[GenerationRequest], usage: StreamUsage
    ) -> None:
        super().__init__(answer_id, requests)
        self._sends_usage = usage.is_sent
        self._end_of_chunk = ',"usage":null}\n\n' if usage.is_asked_for else "}\n\n"
        self._write_envelope()

    def _write_envelope(self) -> None:
        envelope = {
            "id": self.answer_id,
            "object": self.object,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        self._envelope = f'data: {to_json(envelope)[:-1]},"choices":['

    def _start(self, source: int, event: Started) -> None:
        if not self.has_started:
            self.model = event.model
            self._write_envelope()
        super()._start(source, event)

    @abstractmethod
    def failed_choice(self) -> str:
        """The JSON of an empty choice whose finish_reason is `error`."""

    def chunk(self, choice: str) -> None:
        """Write a frame with the JSON of one choice."""
        self.write(f"{self._envelope}{choice}]{self._end_of_chunk}")

    def finish(self) -> None:
        if self._sends_usage:
            self._frames.append(f'{self._envelope}],"usage":{to_json(self.usage())}}}\n\n')
        self._frames.append(DONE)

    def fail(self, error: ServerError) -> None:
        # A router forwards only what looks like a chunk, a client library raises only on `error`.
        error_json = to_json(error_body(error)["error"])
        self._frames.append(f'{self._envelope}{self.failed_choice()}],"error":{error_json}}}\n\n')
        self._frames.append(DONE)


class EventStream(Response):
    """Sends a sink's frames as they come, signs of life while none do; ends the run at hang-up."""

    media_type = "text/event-stream"

    def __init__(self, run: Run, sink: FrameSink, heartbeat_s: float) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._run = run
        self._sink = sink
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            # a task of its own: below the middleware and routes, every wake-up would go through all
            # of their frames
            await asyncio.create_task(self._send_frames(send))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (ClientDisconnect, OSError):
            logger.debug("The client left before its answer was complete")
        finally:
            await self._run.close()

    async def _send_frames(self, send: Send) -> None:
        now = asyncio.get_running_loop().time
        # The head was held for an event. If none has come, a sign of life is due at once.
        deadline = now()
        while not self._run.ended and self._run.failure is None:
            body = self._sink.take()
            if not body and now() >= deadline:
                body = self._sink.sign_of_life(self._run.progress()).encode()
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                deadline = now() + self._heartbeat_s
            await self._run.news(deadline)
        if self._run.failure is not None:
            self._sink.fail(self._run.failure)
        else:
            self._sink.finish()
        await send({"type": "http.response.body", "body": self._sink.take(), "more_body": True})


async def start_stream(run: Run, sink: FrameSink, heartbeat_s: float) -> EventStream:
    """Hold the response until a prompt is read and all are known to be good, or `heartbeat_s` is
    over; raise what fails.

    What the engine refuses at once has its status even if the disk takes longer than that to tell.
    """
    now = asyncio.get_running_loop().time
    async with AsyncExitStack() as stack:
        stack.push_async_callback(run.close)
        deadline = now() + heartbeat_s
        while not (sink.may_begin or run.ended or (run.is_accepted and now() >= deadline)):
            await run.news(deadline if run.is_accepted else None)
            if run.failure is not None:
                raise run.failure
        stack.pop_all()
    return EventStream(run, sink, heartbeat_s)
