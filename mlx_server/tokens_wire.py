"""The wire types of the endpoints that turn prompts into tokens and back, without an answer.

A conversation comes in the fields of a chat request, which are not repeated here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BeforeValidator

from mlx_server.wire_base import Flag, WireModel, wire_error


def _sent_ids(value: object) -> object:
    if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
        raise wire_error("must be a list of token ids, which are whole numbers from 0")
    return tuple(value)


class TemplateFields(WireModel):
    """What the two endpoints that render a conversation know beside the fields of a chat."""

    add_generation_prompt: Flag = True


class TokenizeRequest(TemplateFields):
    """A text, or the fields of a chat in its place."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: Flag | None = None
    return_token_strs: Flag = False


class DetokenizeRequest(WireModel):
    model: str | None = None
    tokens: Annotated[tuple[int, ...], BeforeValidator(_sent_ids)]


class TokenizeAnswer(TypedDict):
    """In vLLM's shape."""

    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: NotRequired[list[str]]


class PromptAnswer(TypedDict):
    prompt: str


class InputTokens(TypedDict):
    """What OpenAI answers for a request of its Responses API."""

    object: Literal["response.input_tokens"]
    input_tokens: int
