"""Finds the tokens of a message among those of the whole answer, for their logprobs."""

from __future__ import annotations

from collections.abc import Sequence

from mlx_server.engine.sequence import TokenLogprob


class ContentTokens:
    """Tokens come with the text they make or before it; those of tags, thoughts and calls are
    passed over.
    """

    def __init__(self) -> None:
        self._waiting: list[TokenLogprob] = []

    def add(self, tokens: Sequence[TokenLogprob]) -> None:
        self._waiting += tokens

    def drop(self) -> None:
        """What has come so far belongs to no message."""
        self._waiting.clear()

    def take(self, text: str) -> list[TokenLogprob]:
        """The tokens of the next piece of the message; one cut by its end is the piece's."""
        joined = b"".join(token.token_bytes for token in self._waiting)
        wanted = text.encode(errors="replace")
        begin = joined.find(wanted)
        # half characters were replaced in the text: then all that is there made it
        end = begin + len(wanted) if begin >= 0 else len(joined)
        taken, num_seen, num_bytes = [], 0, 0
        for token in self._waiting:
            if num_bytes >= end:
                break
            num_bytes += len(token.token_bytes)
            num_seen += 1
            if num_bytes > begin:
                taken.append(token)
        del self._waiting[:num_seen]
        return taken
