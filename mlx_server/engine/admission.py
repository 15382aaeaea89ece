"""How much memory a sequence of the loaded model is promised, from its prompt to its last token.

Knows requests and prompts; what there is and who has it is `KVMemory`'s.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from mlx_server.engine.loaded_model import LoadedModel
from mlx_server.engine.memory import KVMemory
from mlx_server.engine.picture_cost import PictureCost, VisionTower
from mlx_server.engine.prefill import must_be_whole
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.engine.rows import Row, SharedStart
from mlx_server.engine.sequence import ChatPrompt, GenerationRequest, Sequence

# Tokens for which an answer without a limit gets memory at a time.
GROWTH = 1024


class Admission:
    def __init__(self, loaded: LoadedModel, memory: KVMemory) -> None:
        self._loaded = loaded
        self._memory = memory
        self._tower = VisionTower.of(loaded) if loaded.has_vision else None
        self._known: WeakKeyDictionary[PreparedPrompt, int] = WeakKeyDictionary()

    def hold(self, prompt: PreparedPrompt) -> int:
        """The prompt's pictures are in memory; returns their bytes."""
        num_bytes = self._picture_cost(prompt).held_bytes
        if num_bytes:
            self._memory.hold(prompt, num_bytes)
        return num_bytes

    def refuse_hopeless(self, request: GenerationRequest, prompt: PreparedPrompt) -> None:
        """Raises InsufficientMemory for a request of which no sequence could run, even alone."""
        param = "messages" if isinstance(request.prompt, ChatPrompt) else request.prompt.param
        also = ["send fewer or smaller pictures"] * bool(prompt.inputs)
        also += ["ask for fewer answers"] * (request.n > 1)
        self._memory.refuse_hopeless(
            len(prompt),
            request.max_tokens,
            param=param,
            beside=self._most_beside(request, prompt),
            also=also,
        )

    def reserve(
        self, sequence: Sequence, shared: SharedStart | None, *, is_alone: bool = False
    ) -> bool:
        """Promise memory for prompt and answer; False while others hold it, who are all done or
        wait themselves if it `is_alone`.

        `shared` is where another sequence of the request has begun. The last one takes it over.
        """
        held = 0 if shared is None else self._memory.held_bytes(shared)
        if shared is not None and shared.num_expected == 1:
            self._memory.hold(shared, 0)
        prompt: PreparedPrompt = sequence.prompt
        beside = 0
        if shared is None:
            beside = self._most_beside(sequence.request, prompt) - self._memory.held_bytes(prompt)
        own = (prompt,) if shared is None else (prompt, shared)
        is_promised = self._memory.reserve(
            sequence.uid,
            self.first_share(sequence),
            beside,
            alone_with=own if is_alone else None,
        )
        if shared is not None and not is_promised:
            self._memory.hold(shared, held)
        return is_promised

    def share(self, sequence: Sequence, shared: SharedStart) -> None:
        """The state of the sequence's prompt waits for the others of its request."""
        if sequence.request.n > 1:
            self._memory.hold(shared, self._memory.start_bytes(len(sequence.prompt)))

    def first_share(self, sequence: Sequence) -> int:
        """Tokens of the prompt and of as much of the answer as has memory from the beginning.

        An answer without a limit gets more as it grows.
        """
        request = sequence.request
        open_ended = min(request.default_max_tokens or GROWTH, GROWTH)
        num_new = open_ended if request.max_tokens is None else request.max_tokens
        return self._bounded(sequence, num_new)

    def must_grow(self, row: Row) -> bool:
        """Whether the token after the next one has no memory yet."""
        is_open_ended = row.sequence.request.max_tokens is None
        return is_open_ended and _num_wanted(row) > row.num_reserved

    def grow(self, row: Row) -> bool:
        """Promise memory for many more tokens; False if there is none for the one after the
        next.
        """
        num_wanted = _num_wanted(row)
        share = self._bounded(row.sequence, num_wanted - len(row.prompt) + GROWTH)
        if not self._memory.grow(row.sequence.uid, share):
            return False
        row.num_reserved = share
        return num_wanted <= share

    def _bounded(self, sequence: Sequence, num_new: int) -> int:
        beside = self._most_beside(sequence.request, sequence.prompt)
        bound = min(self._loaded.context_length, self._memory.max_total_tokens(beside))
        return min(len(sequence.prompt) + num_new, bound)

    def _most_beside(self, request: GenerationRequest, prompt: PreparedPrompt) -> int:
        """What the request has beside its row while only one of its sequences runs."""
        # who waits for memory asks again at every step
        if prompt not in self._known:
            pictures = self._picture_cost(prompt)
            start = self._memory.start_bytes(len(prompt)) if request.n > 1 else 0
            is_whole = must_be_whole(self._loaded, prompt)
            whole = self._memory.whole_bytes(len(prompt)) if is_whole else 0
            scored = 0 if prompt.top_logprobs is None else self._memory.scored_bytes()
            beside = pictures.held_bytes + pictures.pass_bytes
            self._known[prompt] = beside + start + whole + scored
        return self._known[prompt]

    def _picture_cost(self, prompt: PreparedPrompt) -> PictureCost:
        if self._tower is None or not prompt.inputs:
            return PictureCost()
        return self._tower.cost(prompt)


def _num_wanted(row: Row) -> int:
    return len(row.prompt) + len(row.completion.token_ids) + 2
