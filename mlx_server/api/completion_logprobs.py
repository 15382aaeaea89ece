"""The logprobs of a text completion as the wire shows them, of its echoed prompt as well."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence

from mlx_server.api.logprobs import finite_logprob, groups
from mlx_server.engine.sequence import PromptLogprobs, TokenLogprob
from mlx_server.models import CompletionLogprobs


class TokenOffsets:
    """Where in a choice's text its tokens begin; parts of one character share its place."""

    def __init__(self, num_chars: int = 0) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = num_chars

    def logprobs(self, entries: Sequence[TokenLogprob]) -> CompletionLogprobs:
        """Must be given every token of the choice, in order."""
        return logprobs_at(entries, [self.place(entry.token_bytes) for entry in entries])

    def place(self, token_bytes: bytes) -> int:
        offset = self._num_chars
        self._num_chars += len(self._decoder.decode(token_bytes))
        return offset


def logprobs_at(entries: Sequence[TokenLogprob], offsets: Sequence[int]) -> CompletionLogprobs:
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [finite_logprob(entry) for entry in entries],
        "top_logprobs": [top_logprobs(entry) for entry in entries],
        "text_offset": list(offsets),
    }


def top_logprobs(entry: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens and always the chosen one, which may be one more than was asked for.

    Of tokens that look the same, the likeliest.
    """
    top: dict[str, float] = {}
    for other in (*entry.top, entry):
        top.setdefault(other.token, finite_logprob(other))
    return top


def prompt_logprobs(prompt: PromptLogprobs | None, text: str) -> Iterator[CompletionLogprobs]:
    """Of a prompt whose text is `text`, in groups that fit a line; the first token has nulls."""
    if prompt is None:
        return
    first = TokenLogprob(prompt.first.decode(errors="replace"), prompt.first, 0.0)
    entries = [first, *prompt.others]
    offsets = prompt_offsets([entry.token_bytes for entry in entries], text)
    num_done = 0
    for group in groups(entries):
        logprobs = logprobs_at(group, offsets[num_done : num_done + len(group)])
        if num_done == 0:
            logprobs["token_logprobs"][0] = logprobs["top_logprobs"][0] = None
        num_done += len(group)
        yield logprobs


def prompt_offsets(tokens: Sequence[bytes], text: str) -> list[int]:
    """Where the tokens of `text` begin in it.

    Tokenizers add to it, before all a token for its beginning or a space: such tokens begin where
    the text does, or end where it ends.
    """
    places = TokenOffsets()
    offsets = [places.place(token) for token in tokens]
    begin = max(b"".join(tokens).decode(errors="replace").find(text), 0)
    return [min(max(offset - begin, 0), len(text)) for offset in offsets]


def extend(logprobs: CompletionLogprobs, more: CompletionLogprobs) -> None:
    logprobs["tokens"] += more["tokens"]
    logprobs["token_logprobs"] += more["token_logprobs"]
    logprobs["top_logprobs"] += more["top_logprobs"]
    logprobs["text_offset"] += more["text_offset"]


def no_logprobs() -> CompletionLogprobs:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
