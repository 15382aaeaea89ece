"""Who may have how much KV state of one model, so that no text makes the device run out of memory.

A Metal allocation that fails ends the process, and Python cannot catch it: what might not fit must
not begin. Counts weights, KV state and what a step takes for text, not images and what the vision
tower takes for them. Counts only; holds no arrays and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlx_server.engine.kv_cost import KVCost
from mlx_server.errors import InsufficientMemory
from mlx_server.model_dimensions import ModelDimensions

FLOAT32_BYTES = 4
# A SwiGLU holds gate, up and their product; attention its input, queries, output and the residual.
NUM_INTERMEDIATE = 3
NUM_HIDDEN = 4
# The model's logits, in single precision, sorted, the order, their sums, and what is masked.
NUM_LOGITS = 6


@dataclass(frozen=True, slots=True)
class Scratch:
    """What a step takes beside weights and KV state, all of it taken for single precision.

    `chunk` is the most tokens of a prompt that run at a time; `has_scores` says that attention
    keeps the scores of a whole chunk, which fused kernels do not. `quantises` says that a chunk's
    keys and values are there in full until they are packed, and that no fused kernel reads them
    then.
    """

    dimensions: ModelDimensions
    chunk: int
    has_scores: bool
    quantises: bool = False

    def bytes(self, num_tokens: int, num_rows: int) -> int:
        """While a prompt of `num_tokens` is read and `num_rows` sequences run."""
        d, chunk = self.dimensions, min(self.chunk, num_tokens)
        embeddings = num_tokens * d.hidden_size
        layer = chunk * (NUM_HIDDEN * d.hidden_size + NUM_INTERMEDIATE * d.intermediate_size)
        # a mask is as large as the scores of one head
        heads_with_scores = d.num_heads * (self.has_scores or self.quantises)
        scores = chunk * num_tokens * (heads_with_scores + 1)
        unpacked = 2 * chunk * d.num_heads * d.head_dim * self.quantises
        logits = NUM_LOGITS * num_rows * d.vocab_size
        return (embeddings + layer + scores + unpacked + logits) * FLOAT32_BYTES


class KVMemory:
    """The promises given to the sequences of one loaded model.

    Rows that decode together all have the length of the longest, so what is promised to one
    depends on the others: never add up bytes of single rows.
    """

    def __init__(
        self,
        *,
        limit_bytes: int,
        weight_bytes: int,
        cost: KVCost,
        scratch: Scratch,
        context_length: int,
    ) -> None:
        self._room_bytes = limit_bytes - weight_bytes
        self._cost = cost
        self._scratch = scratch
        self._context_length = context_length
        self._rows: dict[int, int] = {}
        self._max_total_tokens = self._most_tokens_alone()

    @property
    def num_rows(self) -> int:
        """How many sequences hold a promise."""
        return len(self._rows)

    def max_total_tokens(self) -> int:
        """Most tokens, prompt and answer, that a sequence may have while it runs alone."""
        return self._max_total_tokens

    def refuse_hopeless(
        self, num_prompt_tokens: int, max_tokens: int | None, *, param: str
    ) -> None:
        """Raises InsufficientMemory for a prompt that could never run with all of its answer.

        Without `max_tokens` room for the first token will do.
        """
        wanted = num_prompt_tokens + (1 if max_tokens is None else max_tokens)
        if wanted > self._max_total_tokens:
            raise InsufficientMemory(
                num_prompt_tokens, max_tokens, self._max_total_tokens, param=param
            )

    def reserve(self, uid: int, num_tokens: int) -> bool:
        """Promise the new sequence that it may have `num_tokens` in all; False if it must wait."""
        assert uid not in self._rows
        return self._promise(uid, num_tokens)

    def grow(self, uid: int, num_tokens: int) -> bool:
        """Promise a sequence `num_tokens` in all; False if it has to do with what it has."""
        return num_tokens <= self._rows[uid] or self._promise(uid, num_tokens)

    def release(self, uid: int) -> None:
        """The sequence is gone, if it was ever here."""
        self._rows.pop(uid, None)

    def clear(self) -> None:
        self._rows.clear()

    def room_for_prefix_cache(self) -> int:
        """Bytes that nobody was promised."""
        return max(0, self._room_bytes - self._needed_bytes(self._rows.values()))

    def _promise(self, uid: int, num_tokens: int) -> bool:
        rows = {**self._rows, uid: num_tokens}
        if self._needed_bytes(rows.values()) > self._room_bytes:
            return False
        self._rows = rows
        return True

    def _needed_bytes(self, rows: Iterable[int]) -> int:
        """At the worst moment in the life of these rows."""
        lengths = list(rows)
        if not lengths:
            return 0
        longest = max(lengths)
        # a state from the prefix cache, and a batch that lost its longest row, end between two
        # steps of allocation
        slots = longest + self._cost.step
        row = self._cost.row_bytes(slots)
        layer = len(lengths) * self._cost.largest_cache_bytes(slots)
        # a layer is copied when it grows; when a row joins others or is handed back, the layer is
        # padded as well, and the row is there twice
        moving = layer if len(lengths) == 1 else 2 * layer + row
        window = self._cost.window_bytes(self._scratch.chunk)
        scratch = self._scratch.bytes(longest, len(lengths))
        return len(lengths) * row + moving + window + scratch

    def _most_tokens_alone(self) -> int:
        low, high = 0, self._context_length
        while low < high:
            middle = (low + high + 1) // 2
            if self._needed_bytes([middle]) <= self._room_bytes:
                low = middle
            else:
                high = middle - 1
        return low
