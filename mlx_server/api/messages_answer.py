"""Shapes events into a message of Anthropic's, whole or as a stream of named events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mlx_server.api.chat_answer import ChoiceReader
from mlx_server.api.error_handlers import status_of
from mlx_server.api.messages_blocks import BlockEvents, Event, WholeBlocks
from mlx_server.api.messages_errors import message_of, messages_status
from mlx_server.api.sink import EventSink
from mlx_server.api.sse import FrameSink, comment
from mlx_server.api.wire_json import to_json
from mlx_server.engine.sequence import Delta, GenerationRequest, Progress, Started
from mlx_server.errors import ServerError
from mlx_server.messages_wire import (
    ContentBlock,
    MessageObject,
    MessagesUsage,
    StopReason,
    messages_error,
)
from mlx_server.models import Usage

STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class MessageReader:
    """Reads the one choice of a request as events of blocks, and why it ended."""

    def __init__(
        self, started: Started, request: GenerationRequest, *, shows_thinking: bool
    ) -> None:
        self._reader = ChoiceReader(started, request)
        self._blocks = BlockEvents(shows_thinking=shows_thinking)
        self.stop_reason: StopReason | None = None
        self.stop_sequence: str | None = None

    @property
    def num_reasoning_tokens(self) -> int:
        return self._reader.num_reasoning_tokens

    def read(self, delta: Delta) -> Iterator[Event]:
        for output in self._reader.read(delta):
            yield from self._blocks.add(output)
        finish_reason = self._reader.finish_reason(delta)
        if finish_reason is not None:
            yield from self._blocks.finish()
            self._end(STOP_REASONS[finish_reason], delta.stop)

    def _end(self, reason: StopReason, stop: str | None) -> None:
        self.stop_reason = reason
        if reason == "end_turn" and stop is not None:
            self.stop_reason, self.stop_sequence = "stop_sequence", stop


class MessageAnswer(EventSink):
    """Collects the one JSON object of an answer that is not streamed."""

    def __init__(self, request: GenerationRequest, *, shows_thinking: bool) -> None:
        super().__init__(request.request_id, [request])
        self._request = request
        self._shows_thinking = shows_thinking
        self._blocks = WholeBlocks()

    def num_reasoning_tokens(self) -> int:
        return self._reader.num_reasoning_tokens

    def opened(self, index: int, started: Started) -> None:
        self._reader = MessageReader(started, self._request, shows_thinking=self._shows_thinking)

    def wrote(self, index: int, delta: Delta) -> None:
        self._blocks.add(self._reader.read(delta))

    def body(self) -> MessageObject:
        message = message_object(self, self._blocks.blocks())
        message["stop_reason"] = self._reader.stop_reason
        message["stop_sequence"] = self._reader.stop_sequence
        return message


class MessageFrames(FrameSink):
    """Writes events as the text comes: the empty message, its blocks, why it ended."""

    def __init__(
        self, request: GenerationRequest, request_id: str | None, *, shows_thinking: bool
    ) -> None:
        super().__init__(request.request_id, [request])
        self._request = request
        self._request_id = request_id
        self._shows_thinking = shows_thinking

    def num_reasoning_tokens(self) -> int:
        return self._reader.num_reasoning_tokens

    def opened(self, index: int, started: Started) -> None:
        self._reader = MessageReader(started, self._request, shows_thinking=self._shows_thinking)
        self._send({"type": "message_start", "message": message_object(self, [])})

    def wrote(self, index: int, delta: Delta) -> None:
        for event in self._reader.read(delta):
            self._send(event)

    def finish(self) -> None:
        delta = {
            "stop_reason": self._reader.stop_reason,
            "stop_sequence": self._reader.stop_sequence,
        }
        usage = messages_usage(self.usage())
        self._frames += [
            frame({"type": "message_delta", "delta": delta, "usage": usage}),
            frame({"type": "message_stop"}),
        ]

    def fail(self, error: ServerError) -> None:
        status = messages_status(status_of(error))
        body = messages_error(status, message_of(error), self._request_id)
        self._frames.append(frame(body))

    def sign_of_life(self, progress: Progress | None) -> str:
        # no event may come before the first
        return frame({"type": "ping"}) if self.has_started else comment(progress)

    def _send(self, event: Mapping[str, Any]) -> None:
        self.write(frame(event))


def frame(event: Mapping[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {to_json(event)}\n\n"


def message_object(sink: EventSink, content: list[ContentBlock]) -> MessageObject:
    return {
        "id": sink.answer_id,
        "type": "message",
        "role": "assistant",
        "model": sink.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**messages_usage(sink.usage()), "service_tier": "standard"},
    }


def messages_usage(usage: Usage) -> MessagesUsage:
    num_cached = usage["prompt_tokens_details"]["cached_tokens"]
    counts: MessagesUsage = {
        "input_tokens": usage["prompt_tokens"] - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": usage["completion_tokens"],
    }
    if "completion_tokens_details" in usage:
        num_reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
        counts["output_tokens_details"] = {"thinking_tokens": num_reasoning}
    return counts
