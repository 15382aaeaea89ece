"""A request -> the token ids, cache keys and image arrays that prefill works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from mlx_vlm.utils import prepare_inputs

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.media import LoadedImage
from mlx_server.engine.media_marks import refuse_spelled_marks
from mlx_server.engine.prefix_cache import Keys
from mlx_server.engine.prompt_bound import PromptBound
from mlx_server.engine.render import render
from mlx_server.engine.sequence import ChatPrompt, RawPrompt, TextPart
from mlx_server.errors import InvalidRequest

BOUNDARY_MARK = "\u241e"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PreparedPrompt:
    """`inputs` are the processor's arrays for the images, empty without any.

    `checkpoints` are the positions, in rising order, at which KV state should be kept because a
    later prompt is likely to part from this one there. `top_logprobs` is how many of the likeliest
    tokens are told at every place of the prompt itself, None for no logprobs of the prompt.
    """

    token_ids: list[int]
    keys: Keys
    text: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    top_logprobs: int | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


def prepare(
    loaded: LoadedModel, prompt: ChatPrompt | RawPrompt, images: Sequence[LoadedImage]
) -> PreparedPrompt:
    """Render and tokenise. Raises InvalidRequest for what the client must change."""
    if isinstance(prompt, RawPrompt):
        return _prepare_raw(loaded, prompt)
    bound = PromptBound.of_answer(loaded, "messages")
    text = render_within(bound, prompt)
    if images:
        return _prepare_with_images(bound, prompt, text, images)
    token_ids = encode(bound, text, add_special_tokens=False)
    if not token_ids:
        raise InvalidRequest("The model's chat template makes no text of these messages.")
    checkpoints = _checkpoints(loaded, prompt, text, token_ids, token_ids)
    return PreparedPrompt(token_ids, _as_keys(token_ids), text, checkpoints=checkpoints)


def _prepare_raw(loaded: LoadedModel, prompt: RawPrompt) -> PreparedPrompt:
    bound = PromptBound.of_answer(loaded, prompt.param)
    if isinstance(prompt.content, str):
        text: str | None = prompt.content
        token_ids = encode(bound, prompt.content, add_special_tokens=True)
    else:
        text, token_ids = None, known_ids(bound, prompt.content)
    if not token_ids:
        token_ids = [_first_token(loaded)]
    if text is None:
        text = decode(loaded, token_ids)
    return PreparedPrompt(token_ids, _as_keys(token_ids), text)


def render_within(bound: PromptBound, prompt: ChatPrompt) -> str:
    """The conversation's text, unless it is far too long."""
    parts = (part for message in prompt.messages for part in message.content)
    bound.check_length(sum(len(part.text) for part in parts if isinstance(part, TextPart)))
    return render(bound.loaded, prompt)


def encode(bound: PromptBound, text: str, *, add_special_tokens: bool) -> list[int]:
    bound.check_length(len(text))
    bound.check_by_counting(text)
    encoding = bound.loaded.tokenizer.backend_tokenizer.encode(
        text, add_special_tokens=add_special_tokens
    )
    token_ids: list[int] = encoding.ids
    bound.check(len(token_ids))
    return token_ids


def decode(loaded: LoadedModel, token_ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    # not the tokenizer's own, which may tidy up spaces that are there
    backend = loaded.tokenizer.backend_tokenizer
    text: str = backend.decode(list(token_ids), skip_special_tokens=False)
    return text


def known_ids(bound: PromptBound, token_ids: Sequence[int]) -> list[int]:
    """The ids that a client has sent; raises InvalidRequest if the model has no such token."""
    bound.check(len(token_ids))
    vocab_size = bound.loaded.vocab_size
    if any(not 0 <= i < vocab_size for i in token_ids):
        raise InvalidRequest(
            f"Token ids of this model go from 0 to {vocab_size - 1}.", param=bound.param
        )
    return list(token_ids)


def _first_token(loaded: LoadedModel) -> int:
    """What stands for the empty prompt: the beginning of a text, or the end of the one before."""
    for token_id in (loaded.tokenizer.bos_token_id, loaded.tokenizer.eos_token_id):
        if token_id is not None:
            return int(token_id)
    raise InvalidRequest("This model cannot begin without a prompt.", param="prompt")


def _prepare_with_images(
    bound: PromptBound, prompt: ChatPrompt, text: str, images: Sequence[LoadedImage]
) -> PreparedPrompt:
    inputs = process_images(bound, text, images)
    token_ids: list[int] = inputs.pop("input_ids")[0].tolist()
    unexpanded = encode(bound, text, add_special_tokens=False)
    return PreparedPrompt(
        token_ids,
        _salted_keys(bound.loaded, token_ids, images),
        text,
        inputs=inputs,
        checkpoints=_checkpoints(bound.loaded, prompt, text, unexpanded, token_ids),
    )


def process_images(bound: PromptBound, text: str, images: Sequence[LoadedImage]) -> dict[str, Any]:
    """The processor's arrays: `input_ids`, in which images have their room, and those of images."""
    loaded = bound.loaded
    refuse_spelled_marks(loaded, text, len(images))
    try:
        inputs = prepare_inputs(
            loaded.processor,
            images=[image.image for image in images],
            prompts=text,
            image_token_index=loaded.image_token_id,
            add_special_tokens=False,
        )
    except (ValueError, IndexError, TypeError) as error:
        raise InvalidRequest(
            "The model's processor refused the images. Change pictures that are very long and "
            "narrow.",
            param="messages",
        ) from error
    bound.check(inputs["input_ids"].shape[1])
    return dict(inputs)


def _as_keys(token_ids: Sequence[int]) -> Keys:
    return np.array(token_ids, dtype=np.int64)


def _salted_keys(loaded: LoadedModel, token_ids: list[int], images: Sequence[LoadedImage]) -> Keys:
    """Keys in which every image token stands for its picture.

    Where the runs of image tokens cannot be told apart by picture, all pictures salt each run.
    """
    keys = _as_keys(token_ids)
    is_image = keys == (-1 if loaded.image_token_id is None else loaded.image_token_id)
    starts = np.flatnonzero(is_image & ~np.concatenate(([False], is_image[:-1])))
    salts = [_salt(image.digest) for image in images]
    if len(starts) == len(images):
        run_of = np.cumsum(np.isin(np.arange(len(keys)), starts)) - 1
        keys[is_image] = np.array(salts, dtype=np.int64)[run_of[is_image]]
    else:
        keys[is_image if is_image.any() else slice(None)] = hash(tuple(salts)) | -(1 << 62)
    return keys


def _salt(digest: bytes) -> int:
    """A key that no token id can equal."""
    return -(int.from_bytes(digest[:8], "big") >> 1) - 1


def _checkpoints(
    loaded: LoadedModel,
    prompt: ChatPrompt,
    text: str,
    unexpanded: list[int],
    token_ids: list[int],
) -> tuple[int, ...]:
    """Where the first and the last user turn begin, and the end, for models that cannot go back.

    Found by rendering the conversation with that turn changed: the texts part where it begins.
    """
    if not loaded.needs_checkpoints:
        return ()
    turns = [i for i, message in enumerate(prompt.messages) if message.role == "user"]
    # the end serves the same prompt sent again
    places = {len(token_ids) - 1}
    for turn in {*turns[:1], *turns[-1:]}:
        message = prompt.messages[turn]
        changed = replace(message, content=(TextPart(BOUNDARY_MARK),))
        messages = (*prompt.messages[:turn], changed, *prompt.messages[turn + 1 :])
        other = render(loaded, replace(prompt, messages=messages))
        num_tokens = _common_tokens(loaded, text, other, unexpanded)
        places.add(_expanded_position(num_tokens, unexpanded, token_ids))
    return tuple(sorted(place for place in places if 0 < place < len(token_ids)))


def _common_tokens(loaded: LoadedModel, text: str, other: str, token_ids: list[int]) -> int:
    num_chars = _common_length(text, other)
    encode = loaded.tokenizer.backend_tokenizer.encode
    return _common_length(encode(text[:num_chars], add_special_tokens=False).ids, token_ids)


def _common_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    length = min(len(left), len(right))
    return next((i for i in range(length) if left[i] != right[i]), length)


def _expanded_position(position: int, unexpanded: list[int], token_ids: list[int]) -> int:
    """Where `position` lies once each image placeholder has become many tokens; 0 if unknown."""
    if unexpanded[:position] == token_ids[:position]:
        return position
    num_after = len(unexpanded) - position
    if unexpanded[position:] == token_ids[len(token_ids) - num_after :]:
        return len(token_ids) - num_after
    return 0
