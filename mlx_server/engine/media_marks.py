"""The tokens by which a model's prompt says that a picture stands here."""

from __future__ import annotations

from collections.abc import Iterator

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.render import render
from mlx_server.engine.sequence import ChatMessage, ChatPrompt, ImagePart
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


def refuse_spelled_marks(loaded: LoadedModel, text: str, num_images: int) -> None:
    """Raises InvalidRequest if the rendered prompt has other marks than those of its images: one
    that a client has spelled would be taken for the place of one of the pictures.
    """
    one_image = render(loaded, ChatPrompt((ChatMessage("user", (ImagePart("", ""),)),)))
    for mark in set(_marks(loaded)) - {""}:
        if text.count(mark) != one_image.count(mark) * num_images:
            raise InvalidRequest(
                "A text spells the model's own mark for images, audio or video. Beside images, "
                "change that text.",
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
