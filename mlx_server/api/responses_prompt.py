"""Brings the items of a Responses request into the form that prompts are rendered from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mlx_server.api.chat_prompt import call_arguments
from mlx_server.api.parameters import unsupported
from mlx_server.engine.sequence import ChatMessage, ContentPart, ImagePart, TextPart, ToolCall
from mlx_server.errors import InvalidRequest
from mlx_server.parsers.answer import is_object
from mlx_server.responses_wire import SERVED_ITEMS, InputItem, ItemPart

PICTURES_FOLLOW = "The picture follows."


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """An item, and where in the body it stands."""

    item: InputItem
    param: str


@dataclass(slots=True)
class AssistantTurn:
    """What a model wrote in one go is several items here and one message for a template."""

    reasoning: list[str] = field(default_factory=list)
    content: list[ContentPart] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Another text or thought is the next turn's; calls stay together for their results."""
        return bool(self.content) and not self.calls

    def message(self) -> ChatMessage:
        return ChatMessage(
            "assistant",
            tuple(self.content),
            tool_calls=tuple(self.calls),
            reasoning_content="\n".join(self.reasoning) or None,
        )


class Conversation:
    """Collects messages, item by item."""

    def __init__(self, instructions: str | None) -> None:
        self._messages: list[ChatMessage] = []
        self._has_only_instructions = bool(instructions)
        if instructions:
            self._messages.append(ChatMessage("system", (TextPart(instructions),)))
        self._turn: AssistantTurn | None = None
        self._tool_names: dict[str, str] = {}
        # templates show no pictures in results, so these go to the user's next message
        self._pictures: list[ContentPart] = []

    def messages(self) -> tuple[ChatMessage, ...]:
        """All there are; nothing can be added afterwards."""
        self._end_turn()
        self._show_pictures()
        return tuple(self._messages)

    def add(self, placed: PlacedItem) -> None:
        item = placed.item
        match item.type:
            case "message" if item.role == "assistant":
                self._add_assistant_message(placed)
            case "message":
                self._add_message(placed)
            case "reasoning":
                self._add_reasoning(placed)
            case "function_call":
                self._add_call(placed)
            case "function_call_output":
                self._add_result(placed)
            case _:
                raise unsupported(f"{placed.param}.type", SERVED_ITEMS)

    def _add_assistant_message(self, placed: PlacedItem) -> None:
        turn = self._open_turn(is_new_thought=True)
        turn.content += text_parts(placed.item.content, f"{placed.param}.content")

    def _add_reasoning(self, placed: PlacedItem) -> None:
        item = placed.item
        turn = self._open_turn(is_new_thought=True)
        parts = text_parts(item.content, f"{placed.param}.content")
        parts = parts or text_parts(item.summary, f"{placed.param}.summary")
        turn.reasoning += [part.text for part in parts]

    def _add_call(self, placed: PlacedItem) -> None:
        call_id, name = required(placed, "call_id"), required(placed, "name")
        arguments = placed.item.arguments or ""
        # one that broke off has no result, and its text stands in the message beside it
        if placed.item.status == "incomplete" and not is_object(arguments):
            return
        self._tool_names[call_id] = name
        self._open_turn().calls.append(ToolCall(call_id, name, call_arguments(arguments)))

    def _add_result(self, placed: PlacedItem) -> None:
        call_id = required(placed, "call_id")
        if placed.item.output is None:
            raise missing(f"{placed.param}.output")
        parts = list(user_parts(placed.item.output, f"{placed.param}.output"))
        texts = tuple(part for part in parts if isinstance(part, TextPart))
        self._end_turn()
        if parts and not texts:
            texts = (TextPart(PICTURES_FOLLOW),)
        self._pictures += [part for part in parts if isinstance(part, ImagePart)]
        name = self._tool_names.get(call_id)
        self._messages.append(ChatMessage("tool", texts, name=name, tool_call_id=call_id))

    def _add_message(self, placed: PlacedItem) -> None:
        item, param = placed.item, f"{placed.param}.content"
        if item.role is None:
            raise missing(f"{placed.param}.role")
        self._end_turn()
        if item.role == "user":
            content = (*self._pictures, *user_parts(item.content, param))
            self._pictures = []
            self._append(ChatMessage("user", content))
        else:
            self._add_system_message(tuple(text_parts(item.content, param)))

    def _add_system_message(self, content: tuple[ContentPart, ...]) -> None:
        self._show_pictures()
        if self._has_only_instructions:
            # many templates take one system message at most
            (before,) = self._messages
            self._messages = [replace(before, content=(*before.content, *content))]
        else:
            self._append(ChatMessage("system", content))

    def _append(self, message: ChatMessage) -> None:
        self._messages.append(message)
        self._has_only_instructions = False

    def _open_turn(self, *, is_new_thought: bool = False) -> AssistantTurn:
        if self._turn is not None and is_new_thought and self._turn.is_whole:
            self._end_turn()
        if self._turn is None:
            self._show_pictures()
            self._turn = AssistantTurn()
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._append(self._turn.message())
            self._turn = None

    def _show_pictures(self) -> None:
        if self._pictures:
            self._append(ChatMessage("user", tuple(self._pictures)))
            self._pictures = []


def text_parts(parts: Sequence[ItemPart] | None, param: str) -> list[TextPart]:
    """The texts that are not empty; raises for a part of another type."""
    texts: list[TextPart] = []
    for i, part in enumerate(parts or ()):
        if part.type == "input_image":
            raise InvalidRequest("Only a user message may have images.", param=f"{param}.{i}")
        texts += text_part(part, f"{param}.{i}")
    return texts


def user_parts(parts: Sequence[ItemPart] | None, param: str) -> Iterator[ContentPart]:
    for i, part in enumerate(parts or ()):
        if part.type == "input_image":
            yield image_part(part, f"{param}.{i}")
        else:
            yield from text_part(part, f"{param}.{i}")


def text_part(part: ItemPart, param: str) -> Iterator[TextPart]:
    if part.type in ("input_file", "input_audio"):
        raise unsupported(f"{param}.{part.type}")
    name = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise missing(f"{param}.{name}")
    if text:
        yield TextPart(text)


def image_part(part: ItemPart, param: str) -> ImagePart:
    if part.file_id is not None:
        raise unsupported(f"{param}.file_id")
    if part.image_url is None:
        raise missing(f"{param}.image_url")
    return ImagePart(part.image_url, f"{param}.image_url")


def required(placed: PlacedItem, name: Literal["call_id", "name"]) -> str:
    value: str | None = getattr(placed.item, name)
    if not value:
        raise missing(f"{placed.param}.{name}")
    return value


def missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"`{param}` is required.", param=param)
