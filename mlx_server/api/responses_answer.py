"""Shapes events into a response, whole or as a stream of named events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mlx_server.api.chat_answer import ChoiceReader
from mlx_server.api.error_handlers import error_body
from mlx_server.api.responses_items import Event, GrowingOutput
from mlx_server.api.sink import EventSink
from mlx_server.api.sse import FrameSink
from mlx_server.api.wire_json import to_json
from mlx_server.engine.sequence import Delta, FinishReason, GenerationRequest, Started
from mlx_server.errors import EngineOverloaded, InvalidRequest, RequestCancelled, ServerError
from mlx_server.models import Usage
from mlx_server.responses_wire import (
    EndedResponse,
    Item,
    RequestEcho,
    ResponseErrorObject,
    ResponseObject,
    ResponseStatus,
    ResponseUsage,
)

LAST_EVENTS: Mapping[ResponseStatus, str] = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    # there is no event of its own for it
    "cancelled": "response.failed",
}


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A request as the engine, as its answer and as the store need it."""

    request: GenerationRequest
    echo: RequestEcho
    input: tuple[Item, ...]


class GrowingResponse:
    """The one answer of a request; once its status is a last one it does not change any more."""

    def __init__(self, asked: AskedResponse) -> None:
        self.asked = asked
        self.status: ResponseStatus = "in_progress"
        self._output = GrowingOutput()
        self._reader: ChoiceReader | None = None
        self._error: ResponseErrorObject | None = None
        self._completed_at: int | None = None

    def open(self, started: Started) -> None:
        self._reader = ChoiceReader(started, self.asked.request)

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.num_reasoning_tokens

    def read(self, delta: Delta) -> list[Event]:
        if self.status != "in_progress":
            return []
        assert self._reader is not None
        self._output.add_tokens(delta.logprobs)
        events = [event for part in self._reader.read(delta) for event in self._output.add(part)]
        if delta.finish_reason is not None:
            is_cut = delta.finish_reason is not FinishReason.STOP
            events += self._output.finish(is_cut=is_cut)
            self.status = "incomplete" if is_cut else "completed"
            self._completed_at = None if is_cut else int(time.time())
        return events

    def fail(self, error: ServerError) -> None:
        if self.status != "in_progress":
            return
        for _ in self._output.finish(is_cut=True):
            pass
        self.status = "cancelled" if isinstance(error, RequestCancelled) else "failed"
        if self.status == "failed":
            self._error = {"code": error_code(error), "message": error.message}

    def object(self, sink: EventSink) -> ResponseObject:
        is_cut = self.status == "incomplete"
        response: ResponseObject = {
            "id": sink.answer_id,
            "object": "response",
            "created_at": sink.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "model": sink.model,
            "output": self._output.objects(),
            **self.asked.echo,
        }
        if self.status == "in_progress":
            return response
        ended: EndedResponse = {**response, "usage": response_usage(sink.usage())}
        return ended


class ResponseAnswer(EventSink):
    """Collects the one JSON object of an answer that is not streamed."""

    def __init__(self, asked: AskedResponse) -> None:
        super().__init__(asked.request.request_id, [asked.request])
        self.response = GrowingResponse(asked)

    def opened(self, index: int, started: Started) -> None:
        self.response.open(started)

    def wrote(self, index: int, delta: Delta) -> None:
        self.response.read(delta)

    def num_reasoning_tokens(self) -> int:
        return self.response.num_reasoning_tokens

    def body(self) -> ResponseObject:
        return self.response.object(self)


class ResponseFrames(FrameSink):
    """Writes events as the text comes: the response as it begins, its items, and as it ended.

    `keep` is called with the last one before that is sent, so that a client can come back to it.
    """

    def __init__(
        self, asked: AskedResponse, keep: Callable[[ResponseFrames], Awaitable[None]]
    ) -> None:
        super().__init__(asked.request.request_id, [asked.request])
        self.response = GrowingResponse(asked)
        self._keep = keep
        self._num_events = 0

    def opened(self, index: int, started: Started) -> None:
        self.response.open(started)
        for kind in ("response.created", "response.in_progress"):
            self.write(self._frame({"type": kind, "response": self.body()}))

    def wrote(self, index: int, delta: Delta) -> None:
        for event in self.response.read(delta):
            self.write(self._frame(event))

    def num_reasoning_tokens(self) -> int:
        return self.response.num_reasoning_tokens

    def finish(self) -> None:
        last = LAST_EVENTS[self.response.status]
        self._frames.append(self._frame({"type": last, "response": self.body()}))

    def fail(self, error: ServerError) -> None:
        name_input(error)
        if self.has_started:
            self.response.fail(error)
            self.finish()
        else:
            self._frames.append(self._frame(error_event(error)))

    async def settle(self) -> None:
        if self.has_started:
            await self._keep(self)

    def body(self) -> ResponseObject:
        return self.response.object(self)

    def _frame(self, event: Event) -> str:
        numbered = {**event, "sequence_number": self._num_events}
        self._num_events += 1
        return f"event: {event['type']}\ndata: {to_json(numbered)}\n\n"


def name_input(error: ServerError) -> None:
    """The engine knows a conversation as `messages` only."""
    if error.param == "messages":
        error.param = "input"


def error_event(error: ServerError) -> dict[str, Any]:
    """Said twice: as the schema of the event has it, and where OpenAI's clients look for it."""
    body = error_body(error)["error"]
    fields = {name: body[name] for name in ("code", "message", "param")}
    return {"type": "error", **fields, "error": body}


def error_code(error: ServerError) -> str:
    """The nearest of the few that a response may have."""
    if isinstance(error, EngineOverloaded):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"


def response_usage(usage: Usage) -> ResponseUsage:
    details = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": details["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
