"""Logprobs as the wire shows them, and in groups that fit a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mlx_server.engine.sequence import TokenLogprob
from mlx_server.models import TokenLogprobObject, TopLogprobObject

# JSON knows no infinity; this is what OpenAI reports for a token that could not have been chosen.
LOWEST_LOGPROB = -9999.0
MAX_GROUP_BYTES = 12_000


def finite_logprob(entry: TokenLogprob) -> float:
    return max(entry.logprob, LOWEST_LOGPROB)


def logprob_object(entry: TokenLogprob) -> TokenLogprobObject:
    return {
        **top_logprob_object(entry),
        "top_logprobs": [top_logprob_object(top) for top in entry.top],
    }


def top_logprob_object(entry: TokenLogprob) -> TopLogprobObject:
    return {
        "token": entry.token,
        "logprob": finite_logprob(entry),
        "bytes": list(entry.token_bytes),
    }


def groups(entries: Sequence[TokenLogprob]) -> Iterator[list[TokenLogprob]]:
    """All entries in order, in lists whose JSON stays under MAX_GROUP_BYTES."""
    group: list[TokenLogprob] = []
    num_bytes = 0
    for entry in entries:
        size = max_json_bytes(entry)
        if group and num_bytes + size > MAX_GROUP_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(entry)
        num_bytes += size
    if group:
        yield group


def max_json_bytes(entry: TokenLogprob) -> int:
    """An upper bound: a character takes up to six bytes as JSON, a byte four, names and numbers the
    rest.
    """
    own = 120 + 6 * len(entry.token) + 4 * len(entry.token_bytes)
    return own + sum(map(max_json_bytes, entry.top))
