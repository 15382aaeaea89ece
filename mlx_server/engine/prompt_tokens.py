"""A request that only prepares its prompt -> the tokens of it."""

from __future__ import annotations

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.prompt import decode, encode, known_ids, process_images, render_within
from mlx_server.engine.prompt_bound import PromptBound
from mlx_server.engine.sequence import PromptTokens, RawPrompt, Sequence


def prompt_tokens(loaded: LoadedModel, sequence: Sequence) -> PromptTokens:
    """The same tokens as for an answer. Raises InvalidRequest for what the client must change."""
    wanted = sequence.request.only_prepare
    assert wanted is not None
    text, token_ids = _text_and_tokens(loaded, sequence, wanted.add_special_tokens)
    texts = None
    if wanted.token_texts:
        in_bytes = map(loaded.token_text.token_bytes, token_ids)
        texts = tuple(token.decode(errors="replace") for token in in_bytes)
    return PromptTokens(loaded.id, loaded.context_length, text, tuple(token_ids), texts)


def _text_and_tokens(
    loaded: LoadedModel, sequence: Sequence, add_special_tokens: bool | None
) -> tuple[str, list[int]]:
    prompt = sequence.request.prompt
    if isinstance(prompt, RawPrompt):
        bound = PromptBound.of_count(loaded, prompt.param)
        if isinstance(prompt.content, str):
            adds = add_special_tokens is not False
            return prompt.content, encode(bound, prompt.content, add_special_tokens=adds)
        token_ids = known_ids(bound, prompt.content)
        return decode(loaded, token_ids), token_ids
    bound = PromptBound.of_count(loaded, "messages")
    text = render_within(bound, prompt)
    if sequence.images:
        return text, process_images(bound, text, sequence.images)["input_ids"][0].tolist()
    return text, encode(bound, text, add_special_tokens=bool(add_special_tokens))
