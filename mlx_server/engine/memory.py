"""Who may have how much KV state of one model, so that no text makes the device run out of memory.

A Metal allocation that fails ends the process, and Python cannot catch it: what might not fit must
not begin. Counts weights, KV state, what a step takes for text, and what it is told that pictures
take. Counts only; holds no arrays and evicts nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from mlx_server.engine.kv_cost import KVCost
from mlx_server.engine.prefill import LAST_PIECE
from mlx_server.engine.prompt_scores import SCORED_PIECE, SCORED_ROWS
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
    keeps the scores of a whole chunk, which fused kernels do not.
    """

    dimensions: ModelDimensions
    chunk: int
    has_scores: bool

    def bytes(self, num_tokens: int, num_rows: int, *, is_packed: bool = False) -> int:
        """While a prompt of `num_tokens` is read and `num_rows` sequences run.

        With `is_packed` KV state a chunk's keys and values are there in full until they are packed,
        and no fused kernel reads them then.
        """
        d, chunk = self.dimensions, min(self.chunk, num_tokens)
        embeddings = num_tokens * d.hidden_size
        layer = chunk * (NUM_HIDDEN * d.hidden_size + NUM_INTERMEDIATE * d.intermediate_size)
        # a mask is as large as the scores of one head
        heads_with_scores = d.num_heads * (self.has_scores or is_packed)
        scores = chunk * num_tokens * (heads_with_scores + 1)
        unpacked = 2 * chunk * d.num_heads * d.head_dim * is_packed
        # many families compute them for every token that runs together with the prompt's last
        logits = (NUM_LOGITS * num_rows + min(LAST_PIECE, chunk)) * d.vocab_size
        return (embeddings + layer + scores + unpacked + logits) * FLOAT32_BYTES

    def whole_bytes(self, num_tokens: int) -> int:
        """What a prompt takes beyond that if all of it runs in one piece."""
        d, chunk = self.dimensions, min(self.chunk, num_tokens)
        more = num_tokens - chunk
        layer = more * (NUM_HIDDEN * d.hidden_size + NUM_INTERMEDIATE * d.intermediate_size)
        scores = more * num_tokens * (d.num_heads + 1)
        logits = (num_tokens - min(LAST_PIECE, chunk)) * d.vocab_size
        return (layer + scores + logits) * FLOAT32_BYTES

    @property
    def scored_bytes(self) -> int:
        """What the logprobs of a prompt's own tokens take, however long it is."""
        num_rows = SCORED_PIECE + NUM_LOGITS * SCORED_ROWS
        return num_rows * self.dimensions.vocab_size * FLOAT32_BYTES


class KVMemory:
    """The promises given to the sequences of one loaded model.

    Rows that decode together all have the length of the longest, so what is promised to one
    depends on the others: never add up bytes of single rows. What a sequence needs beside its row
    is added up: `beside` until its prompt is through, and what `hold` was told of while its owner
    lives.
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
        self._beside: dict[int, int] = {}
        self._held: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._max_total_tokens = self._most_tokens_alone()

    @property
    def num_rows(self) -> int:
        """How many sequences hold a promise."""
        return len(self._rows)

    def max_total_tokens(self, beside: int = 0) -> int:
        """Most tokens, prompt and answer, that a sequence may have while it runs alone and needs
        `beside` bytes more.
        """
        return self._most_tokens_alone(beside) if beside else self._max_total_tokens

    def refuse_hopeless(
        self,
        num_prompt_tokens: int,
        max_tokens: int | None,
        *,
        param: str,
        beside: int = 0,
        also: Iterable[str] = (),
    ) -> None:
        """Raises InsufficientMemory for a prompt that could never run with all of its answer.

        Without `max_tokens` room for the first token will do. `also` are more ways to help it.
        """
        wanted = num_prompt_tokens + (1 if max_tokens is None else max_tokens)
        most = self.max_total_tokens(beside)
        if min(wanted, self._context_length) > most:
            raise InsufficientMemory(num_prompt_tokens, max_tokens, most, param=param, also=also)

    def whole_bytes(self, num_prompt_tokens: int) -> int:
        """Of a prompt that its model must see whole, beside what every prompt takes."""
        return self._scratch.whole_bytes(num_prompt_tokens)

    def scored_bytes(self) -> int:
        """Of the logprobs of a prompt's own tokens, beside what every prompt takes."""
        return self._scratch.scored_bytes

    def start_bytes(self, num_prompt_tokens: int) -> int:
        """Of a prompt that is through, from which more than one sequence will begin."""
        logits = self._scratch.dimensions.vocab_size * FLOAT32_BYTES
        return self._cost.row_bytes(num_prompt_tokens + self._cost.step) + logits

    def reserve(
        self,
        uid: int,
        num_tokens: int,
        beside: int = 0,
        *,
        alone_with: Collection[object] | None = None,
    ) -> bool:
        """Promise the new sequence that it may have `num_tokens` in all, and until `settle` so many
        bytes beside them; False if it must wait.

        With `alone_with` what others hold does not count: they wait for this one.
        """
        assert uid not in self._rows
        held = sum(self._held.values()) if alone_with is None else self.held_bytes(*alone_with)
        wanted = beside + held + sum(self._beside.values())
        if not self._has_room([*self._rows.values(), num_tokens], wanted):
            return False
        self._rows[uid], self._beside[uid] = num_tokens, beside
        return True

    def settle(self, uid: int) -> None:
        """The sequence's prompt is through, and what it needed beside it is gone."""
        self._beside.pop(uid, None)

    def hold(self, owner: object, num_bytes: int) -> None:
        """So much is in memory for as long as `owner` is."""
        self._held[owner] = num_bytes

    def held_bytes(self, *owners: object) -> int:
        return sum(self._held.get(owner, 0) for owner in owners)

    def grow(self, uid: int, num_tokens: int) -> bool:
        """Promise a sequence `num_tokens` in all; False if it has to do with what it has."""
        if num_tokens <= self._rows[uid]:
            return True
        rows = {**self._rows, uid: num_tokens}
        if not self._has_room(rows.values(), self._bytes_beside()):
            return False
        self._rows = rows
        return True

    def release(self, uid: int) -> None:
        """The sequence is gone, if it was ever here."""
        self._rows.pop(uid, None)
        self._beside.pop(uid, None)

    def clear(self) -> None:
        """All sequences are gone; what others hold stays."""
        self._rows.clear()
        self._beside.clear()

    def room_for_prefix_cache(self) -> int:
        """Bytes that nobody was promised."""
        needed = self._needed_bytes(self._rows.values()) + self._bytes_beside()
        return max(0, self._room_bytes - needed)

    def _has_room(self, rows: Iterable[int], beside: int) -> bool:
        return self._needed_bytes(rows) + beside <= self._room_bytes

    def _bytes_beside(self) -> int:
        return sum(self._beside.values()) + sum(self._held.values())

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
        scratch = self._scratch.bytes(longest, len(lengths), is_packed=self._cost.is_packed)
        return len(lengths) * row + moving + window + scratch

    def _most_tokens_alone(self, beside: int = 0) -> int:
        low, high = 0, self._context_length
        while low < high:
            middle = (low + high + 1) // 2
            if self._has_room([middle], beside):
                low = middle
            else:
                high = middle - 1
        return low
