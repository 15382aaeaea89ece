"""What the runner knows of the sequences that decode, and of those that are about to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlx_server.engine.batch import RowStart
from mlx_server.engine.completion import Completion
from mlx_server.engine.prefix_cache import Keys
from mlx_server.engine.prompt import PreparedPrompt
from mlx_server.engine.sequence import Progress, PromptLogprobs, Sequence, Started


@dataclass(frozen=True, slots=True)
class PrefillResult:
    """`num_tokens` of the prompt ran; `Started` means that the sequence decodes from now on."""

    event: Progress | Started
    num_tokens: int


@dataclass(slots=True, eq=False)
class Row:
    sequence: Sequence
    prompt: PreparedPrompt
    completion: Completion
    num_reserved: int

    def keys(self) -> Keys:
        """Those of the prompt and of all tokens that came."""
        new_keys = np.array(self.completion.token_ids, dtype=np.int64)
        return np.concatenate([self.prompt.keys, new_keys])


@dataclass(slots=True, eq=False, weakref_slot=True)
class SharedStart:
    """Where the other sequences of a request begin; `num_expected` of them are still to come."""

    start: RowStart
    num_cached_tokens: int
    num_expected: int
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(slots=True, eq=False)
class Ended:
    """Rows that have said their last and still hold their place; broken ones leave nothing."""

    uids: list[int] = field(default_factory=list)
    broken: set[int] = field(default_factory=set)
