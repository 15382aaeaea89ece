"""The tokens by which a model's prompt says that a picture stands here."""

from __future__ import annotations

import json
from collections.abc import Iterator

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.sequence import ChatPrompt, TextPart
from mlx_server.errors import InvalidRequest

CONFIG_FIELDS = (
    "image_token_id",
    "image_token_index",
    "video_token_id",
    "video_token_index",
    "audio_token_id",
    "audio_token_index",
)
PROCESSOR_FIELDS = ("image_token", "boi_token", "video_token", "audio_token")


def refuse_spelled_marks(loaded: LoadedModel, prompt: ChatPrompt) -> None:
    """Raises InvalidRequest if a text of the client spells a mark, which would then be taken for
    the place of one of the pictures.
    """
    marks = set(_marks(loaded)) - {""}
    if any(mark in text for text in _texts(prompt) for mark in marks):
        raise InvalidRequest(
            "A text spells the model's own mark for images, audio or video. Beside images, change "
            "that text.",
            param="messages",
        )


def _marks(loaded: LoadedModel) -> Iterator[str]:
    for name in CONFIG_FIELDS:
        token_id = getattr(loaded.model.config, name, None)
        if isinstance(token_id, int) and token_id >= 0:
            yield loaded.tokenizer.backend_tokenizer.id_to_token(token_id) or ""
    for name in PROCESSOR_FIELDS:
        for owner in (loaded.processor, loaded.tokenizer):
            token = getattr(owner, name, None)
            yield token if isinstance(token, str) else ""


def _texts(prompt: ChatPrompt) -> Iterator[str]:
    yield json.dumps([dict(tool) for tool in prompt.tools], ensure_ascii=False)
    for message in prompt.messages:
        yield from (part.text for part in message.content if isinstance(part, TextPart))
        yield message.reasoning_content or ""
        calls = [(call.name, dict(call.arguments)) for call in message.tool_calls]
        yield json.dumps(calls, ensure_ascii=False)
