"""The images of a request before they are loaded."""

from __future__ import annotations

from dataclasses import replace

from mlx_server.catalog import ModelEntry
from mlx_server.engine.sequence import (
    ChatMessage,
    ChatPrompt,
    GenerationRequest,
    ImagePart,
)
from mlx_server.errors import InvalidRequest


def image_parts(request: GenerationRequest) -> list[ImagePart]:
    """The images of a chat in the order in which the template will place them."""
    if not isinstance(request.prompt, ChatPrompt):
        return []
    return [
        part
        for message in request.prompt.messages
        for part in message.content
        if isinstance(part, ImagePart)
    ]


def refuse_blind(entry: ModelEntry, request: GenerationRequest) -> None:
    """Raises InvalidRequest if there are images and the model cannot see."""
    images = image_parts(request)
    if images and "vision" not in entry.capabilities:
        raise InvalidRequest(
            "This model reads text only. Leave the image out or name a model with vision.",
            param=images[0].param,
        )


def without_urls(request: GenerationRequest) -> GenerationRequest:
    """The request once its images are loaded: a `data:` URL is as large as its picture."""
    if not isinstance(request.prompt, ChatPrompt):
        return request
    messages = tuple(map(_without_urls, request.prompt.messages))
    return replace(request, prompt=replace(request.prompt, messages=messages))


def _without_urls(message: ChatMessage) -> ChatMessage:
    content = tuple(
        replace(part, url="") if isinstance(part, ImagePart) else part for part in message.content
    )
    return replace(message, content=content)
