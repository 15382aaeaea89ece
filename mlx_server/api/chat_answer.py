"""Shapes events into a chat completion, whole or as chunks.

Both read the same deltas of the parsers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from mlx_server.api.logprobs import groups, logprob_object
from mlx_server.api.sink import SYSTEM_FINGERPRINT, EventSink, finish_reason_on_wire
from mlx_server.api.sse import MAX_TEXT_CHARS, ChunkSink, StreamUsage, pieces
from mlx_server.api.wire_json import to_json
from mlx_server.engine.sequence import ChatPrompt, Delta, GenerationRequest, Started, TokenLogprob
from mlx_server.models import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    TokenLogprobObject,
)
from mlx_server.parsers.answer import Answer
from mlx_server.parsers.output import (
    ContentDelta,
    OutputDelta,
    OutputParser,
    ReasoningDelta,
    ToolCallStart,
)


class ChoiceReader:
    """Reads the text of one choice for what a chat message is made of.

    The tokens of tags count as reasoning too.
    """

    def __init__(self, started: Started, request: GenerationRequest) -> None:
        self._parser = OutputParser(
            started.tool_format,
            declared_tools(request),
            started.reasoning_format,
            started.is_reasoning,
        )
        self.num_reasoning_tokens = 0
        self._num_tokens = 0

    def read(self, delta: Delta) -> list[OutputDelta]:
        was_reasoning = self._parser.is_reasoning
        output = self._parser.feed(delta.text) if delta.text else []
        has_reasoning = any(isinstance(part, ReasoningDelta) for part in output)
        if was_reasoning or self._parser.is_reasoning or has_reasoning:
            self.num_reasoning_tokens += delta.num_completion_tokens - self._num_tokens
        self._num_tokens = delta.num_completion_tokens
        return output if delta.finish_reason is None else [*output, *self._parser.finish()]

    def finish_reason(self, delta: Delta) -> str | None:
        """Valid once `read` has seen the delta."""
        if delta.finish_reason is None:
            return None
        reason = finish_reason_on_wire(delta.finish_reason)
        return "tool_calls" if reason == "stop" and self._parser.num_tool_calls else reason


def declared_tools(request: GenerationRequest) -> Sequence[Mapping[str, Any]]:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt.tools


@dataclass(slots=True)
class GrowingChoice:
    reader: ChoiceReader
    answer: Answer = field(default_factory=Answer)
    logprobs: list[TokenLogprobObject] = field(default_factory=list)
    finish_reason: str = ""


class ChatAnswer(EventSink):
    """Collects the one JSON object of an answer that is not streamed."""

    def __init__(self, request: GenerationRequest) -> None:
        super().__init__(request.request_id, [request])
        self._request = request
        self._choices: list[GrowingChoice] = []

    def opened(self, index: int, started: Started) -> None:
        self._choices.append(GrowingChoice(ChoiceReader(started, self._request)))

    def wrote(self, index: int, delta: Delta) -> None:
        choice = self._choices[index]
        choice.answer.add(choice.reader.read(delta))
        choice.logprobs += map(logprob_object, delta.logprobs)
        choice.finish_reason = choice.reader.finish_reason(delta) or ""

    def num_reasoning_tokens(self) -> int:
        return sum(choice.reader.num_reasoning_tokens for choice in self._choices)

    def body(self) -> ChatCompletion:
        return {
            "id": self.answer_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
            "choices": [self._choice(index, choice) for index, choice in enumerate(self._choices)],
            "usage": self.usage(),
        }

    def _choice(self, index: int, choice: GrowingChoice) -> ChatChoice:
        logprobs: ChatLogprobs = {"content": choice.logprobs, "refusal": None}
        return {
            "index": index,
            "message": assistant_message(choice.answer),
            "logprobs": None if self._request.top_logprobs is None else logprobs,
            "finish_reason": choice.finish_reason,
        }


def assistant_message(answer: Answer) -> AssistantMessage:
    answer.finish()
    # Clients and routers take null for a message without text only beside tool calls.
    content = answer.content or (None if answer.tool_calls else "")
    message: AssistantMessage = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = message["reasoning"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return message


class ChatFrames(ChunkSink):
    """Writes chunks as the text comes: a role, then deltas, then the finish_reason alone."""

    object = "chat.completion.chunk"

    def __init__(self, request: GenerationRequest, usage: StreamUsage) -> None:
        super().__init__(request.request_id, [request], usage)
        self._request = request
        self._readers: list[ChoiceReader] = []

    def opened(self, index: int, started: Started) -> None:
        self._readers.append(ChoiceReader(started, self._request))
        self.chunk(choice_json(index, '{"role":"assistant","content":""}'))

    def wrote(self, index: int, delta: Delta) -> None:
        reader = self._readers[index]
        parts = [part for output in reader.read(delta) for part in delta_parts(output)]
        logprobs = [*map(logprobs_json, groups(delta.logprobs))] if delta.logprobs else []
        for part, group in zip_longest(parts, logprobs):
            self.chunk(choice_json(index, part or "{}", group or "null"))
        finish_reason = reader.finish_reason(delta)
        if finish_reason is not None:
            self.chunk(choice_json(index, "{}", finish_reason=f'"{finish_reason}"'))

    def num_reasoning_tokens(self) -> int:
        return sum(reader.num_reasoning_tokens for reader in self._readers)

    def failed_choice(self) -> str:
        return choice_json(0, "{}", finish_reason='"error"')


def choice_json(index: int, delta: str, logprobs: str = "null", finish_reason: str = "null") -> str:
    return (
        f'{{"index":{index},"delta":{delta},"logprobs":{logprobs},"finish_reason":{finish_reason}}}'
    )


def delta_parts(output: OutputDelta) -> Iterator[str]:
    """The wire's `delta` objects for one delta of the parsers, cut so that each fits a line."""
    match output:
        case ContentDelta(text):
            for piece in pieces(text):
                yield f'{{"content":{to_json(piece)}}}'
        case ReasoningDelta(text):
            for piece in pieces(text, MAX_TEXT_CHARS // 2):
                thought = to_json(piece)
                yield f'{{"reasoning_content":{thought},"reasoning":{thought}}}'
        case ToolCallStart(index, id=call_id, name=name):
            first, *rest = list(pieces(name)) or [""]
            function = {"name": first, "arguments": ""}
            yield call_part(
                {"index": index, "id": call_id, "type": "function", "function": function}
            )
            for piece in rest:
                yield call_part({"index": index, "function": {"name": piece}})
        case _:
            for piece in pieces(output.text):
                yield call_part({"index": output.index, "function": {"arguments": piece}})


def call_part(call: Mapping[str, Any]) -> str:
    return f'{{"tool_calls":[{to_json(call)}]}}'


def logprobs_json(entries: Sequence[TokenLogprob]) -> str:
    return to_json({"content": [logprob_object(entry) for entry in entries], "refusal": None})
