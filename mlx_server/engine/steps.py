"""What the engine can do next, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass

from mlx_server.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Nothing runs: put `model` into the slot."""

    model: str


@dataclass(frozen=True, slots=True)
class PrepareStep:
    """Build the prompt of a waiting sequence, so that its faults are known before its turn."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class PrefillStep:
    """Run the next chunk of the sequence's prompt: at most `max_tokens`, `None` for a full one."""

    sequence: Sequence
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token for every running sequence."""


Step = LoadStep | PrepareStep | PrefillStep | DecodeStep
