"""Whose turn it is: which model is in the slot, how long it stays, and which one is next.

A turn lasts while the model has work, but once another model has waited for `patience_s`, only what
came before that other one's oldest request, or before the turn, is still taken in. The next turn
goes to the model whose last turn is longest ago, so a request waits for no more than one other turn
of every other model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mlx_server.engine.sequence import Sequence


class Turns:
    """Times are seconds of the clock that the caller uses."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.model: str | None = None
        self._began = 0.0
        self._num_turns = 0
        self._last_turn: dict[str, int] = {}

    def note(self, model: str | None, now: float) -> None:
        """Say what is in the slot; a turn begins when that changes."""
        if model == self.model:
            return
        self.model, self._began = model, now
        if model is not None:
            # nobody gave a turn to a model that was loaded before anybody asked
            self._count(model)

    def last_arrival(self, waiting: Iterable[Sequence], now: float) -> float:
        """Until when sequences for the model of this turn must have come to begin in it."""
        other = next((s for s in waiting if s.model != self.model), None)
        if other is None or now < max(other.arrived, self._began) + self._patience_s:
            return math.inf
        return max(other.arrived, self._began)

    def give(self, waiting: Iterable[Sequence]) -> str | None:
        """The model of the next turn, which is counted as one even if the model cannot be loaded;
        `waiting` is in the order of arrival.
        """
        models = dict.fromkeys(s.model for s in waiting if s.model != self.model)
        chosen = min(models, key=lambda model: self._last_turn.get(model, 0), default=None)
        if chosen is not None:
            self._count(chosen)
        return chosen

    def _count(self, model: str) -> None:
        self._num_turns += 1
        self._last_turn[model] = self._num_turns
