"""Brings the turns and tools of a messages request into the form that prompts are rendered from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from mlx_server.api.messages_tools import shown_tools
from mlx_server.api.parameters import unsupported
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    ContentPart,
    ImagePart,
    TextPart,
    ToolCall,
)
from mlx_server.errors import InvalidRequest
from mlx_server.messages_wire import Block, BlockFields, CountTokensRequest, Source

# A coding client opens its system prompt with this line, whose number differs from request to
# request: a header that is no text for a model and would part every prompt from the one before.
BILLING_HEADER = "x-anthropic-billing-header:"
ERROR = "Error: "
PICTURES_FOLLOW = "The picture follows."


@dataclass(frozen=True, slots=True)
class Placed:
    """A block, and where in the body it stands."""

    block: Block
    param: str


@dataclass(frozen=True, slots=True)
class JoinedTurn:
    """All turns in a row that are of one role: the API makes one of them."""

    role: Literal["user", "assistant", "system"]
    blocks: Sequence[Placed]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns as messages; `tool_names` knows whose result it is that a later turn brings."""

    tool_names: dict[str, str] = field(default_factory=dict)

    def messages(self, turn: JoinedTurn) -> Iterator[ChatMessage]:
        if turn.role == "assistant":
            yield self._assistant(turn.blocks)
        elif turn.role == "system":
            yield ChatMessage("system", tuple(text_parts(turn.blocks)))
        else:
            yield from self._user(turn.blocks)

    def _assistant(self, blocks: Sequence[Placed]) -> ChatMessage:
        calls = tuple(tool_call(placed) for placed in blocks if placed.block.type == "tool_use")
        self.tool_names.update((call.id, call.name) for call in calls)
        # what is redacted only its author can read
        others = [p for p in blocks if p.block.type not in ("tool_use", "redacted_thinking")]
        thoughts = [
            required(placed, "thinking") for placed in others if placed.block.type == "thinking"
        ]
        return ChatMessage(
            "assistant",
            tuple(text_parts([p for p in others if p.block.type != "thinking"])),
            tool_calls=calls,
            reasoning_content="\n".join(filter(None, thoughts)) or None,
        )

    def _user(self, blocks: Sequence[Placed]) -> Iterator[ChatMessage]:
        """The results of tools first, then all else as one message.

        Templates show no pictures in results, so these go into that message.
        """
        content: list[ContentPart] = []
        has_results = False
        for placed in blocks:
            if placed.block.type == "tool_result":
                has_results = True
                parts = list(result_parts(placed))
                yield self._result(placed, parts)
                content += [part for part in parts if isinstance(part, ImagePart)]
            else:
                content += user_parts(placed.block, placed.param)
        if content or not has_results:
            yield ChatMessage("user", tuple(content))

    def _result(self, placed: Placed, parts: Sequence[ContentPart]) -> ChatMessage:
        texts = [part for part in parts if isinstance(part, TextPart)]
        if parts and not texts:
            texts = [TextPart(PICTURES_FOLLOW)]
        if placed.block.is_error:
            first = texts[0].text if texts else ""
            texts = [TextPart(ERROR + first), *texts[1:]]
        call_id = required(placed, "tool_use_id")
        return ChatMessage(
            "tool", tuple(texts), name=self.tool_names.get(call_id), tool_call_id=call_id
        )


def messages_prompt(wire: CountTokensRequest) -> ChatPrompt:
    turns = joined_turns(wire)
    begun = turns.pop() if turns[-1].role == "assistant" else None
    if not turns:
        raise InvalidRequest("`messages` must begin with a user's message.", param="messages")
    prefill = "" if begun is None else prefill_text(begun)
    if prefill:
        refuse_with_prefill(wire)
    conversation = Conversation()
    messages = [message for turn in turns for message in conversation.messages(turn)]
    if system := tuple(system_parts(wire)):
        messages.insert(0, ChatMessage("system", system))
    return ChatPrompt(
        tuple(messages), shown_tools(wire), template_kwargs(wire, bool(prefill)), prefill
    )


def joined_turns(wire: CountTokensRequest) -> list[JoinedTurn]:
    numbered = enumerate(wire.messages)
    return [
        JoinedTurn(
            role,
            [
                Placed(block, f"messages.{i}.content.{j}")
                for i, turn in turns
                for j, block in enumerate(turn.content)
            ],
        )
        for role, turns in groupby(numbered, key=lambda turn: turn[1].role)
    ]


def prefill_text(turn: JoinedTurn) -> str:
    """What the answer begins with, as the last message has it."""
    for placed in turn.blocks:
        if placed.block.type == "tool_use":
            raise InvalidRequest(
                "The last message may not be a tool call; its result must follow.",
                param=placed.param,
            )
    return "".join(part.text for part in text_parts(turn.blocks))


def refuse_with_prefill(wire: CountTokensRequest) -> None:
    """Whatever has to come before the answer's first word."""
    reason = "does not go together with an assistant's message at the end of `messages`."
    if wire.thinking is not None and wire.thinking.type != "disabled":
        raise InvalidRequest(f"`thinking` {reason}", param="thinking")
    if wire.output_config.format is not None:
        raise InvalidRequest(f"`output_config.format` {reason}", param="output_config.format")
    if wire.output_format is not None:
        raise InvalidRequest(f"`output_format` {reason}", param="output_format")


def template_kwargs(wire: CountTokensRequest, has_prefill: bool) -> Mapping[str, Any]:
    kwargs = dict(wire.chat_template_kwargs)
    if wire.output_config.effort is not None:
        kwargs["reasoning_effort"] = wire.output_config.effort
    if wire.thinking is not None and wire.thinking.type == "between_tools":
        raise unsupported("thinking.type", ("enabled", "disabled", "adaptive"))
    if wire.thinking is not None or has_prefill:
        kwargs["enable_thinking"] = wire.thinking is not None and wire.thinking.type != "disabled"
    return kwargs


def system_parts(wire: CountTokensRequest) -> Iterator[TextPart]:
    for i, block in enumerate(wire.system):
        for part in text_part(block, f"system.{i}"):
            if not part.text.startswith(BILLING_HEADER):
                yield part


def text_parts(blocks: Sequence[Placed]) -> Iterator[TextPart]:
    for placed in blocks:
        yield from text_part(placed.block, placed.param)


def text_part(block: BlockFields, param: str) -> Iterator[TextPart]:
    """The text, if there is any; raises for a block of another type."""
    if block.type != "text":
        raise misplaced(block, param)
    if block.text is None:
        raise missing(f"{param}.text")
    if block.text:
        yield TextPart(block.text)


def user_parts(block: BlockFields, param: str) -> Iterator[ContentPart]:
    if block.type == "image":
        yield image_part(block, param)
    else:
        yield from text_part(block, param)


def result_parts(placed: Placed) -> Iterator[ContentPart]:
    for i, block in enumerate(placed.block.content or ()):
        yield from user_parts(block, f"{placed.param}.content.{i}")


def image_part(block: BlockFields, param: str) -> ImagePart:
    if block.source is None:
        raise missing(f"{param}.source")
    if block.transformations is not None and block.transformations.oversized_image == "error":
        raise unsupported(f"{param}.transformations.oversized_image", ("downsize",))
    return ImagePart(image_url(block.source, f"{param}.source"), f"{param}.source")


def image_url(source: Source, param: str) -> str:
    match source.type:
        case "url":
            if source.url is None:
                raise missing(f"{param}.url")
            return source.url
        case "base64":
            if source.data is None:
                raise missing(f"{param}.data")
            return f"data:{source.media_type or ''};base64,{source.data}"
    raise unsupported(f"{param}.type", ("base64", "url"))


def tool_call(placed: Placed) -> ToolCall:
    return ToolCall(required(placed, "id"), required(placed, "name"), placed.block.input or {})


def required(placed: Placed, name: Literal["id", "name", "thinking", "tool_use_id"]) -> str:
    value: str | None = getattr(placed.block, name)
    if value is None:
        raise missing(f"{placed.param}.{name}")
    return value


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` is required.", param=param)


def misplaced(block: BlockFields, param: str) -> InvalidRequest:
    if block.is_served:
        return InvalidRequest(
            f"`{param}` may not be a block of type `{block.type}` in this place.", param=param
        )
    return unsupported(f"{param}.{block.type}")
