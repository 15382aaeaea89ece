"""Which step the engine takes next.

Pure Python: knows sequences and model ids, no arrays and no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mlx_server.engine.sequence import Sequence, SequenceStatus


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
    """Run the next chunk of the sequence's prompt."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One token for every running sequence."""


Step = LoadStep | PrepareStep | PrefillStep | DecodeStep


class Scheduler:
    """First come, first served: a sequence for another model waits for those before it."""

    def __init__(self, max_num_seqs: int = 1) -> None:
        self.max_num_seqs = max_num_seqs
        self.waiting: deque[Sequence] = deque()
        self.prefilling: Sequence | None = None
        self.running: list[Sequence] = []
        self._has_just_prepared = False

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.prefilling or self.running)

    @property
    def num_running(self) -> int:
        return len(self.running) + (self.prefilling is not None)

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def next_step(self, loaded: str | None) -> Step | None:
        """`loaded` is the model in the slot.

        Admits a waiting sequence when there is room for it.
        """
        if (unprepared := self._next_to_prepare(loaded)) is not None:
            return PrepareStep(unprepared)
        if self.prefilling is not None:
            return PrefillStep(self.prefilling)
        if self.waiting and self.num_running < self.max_num_seqs:
            head = self.waiting[0]
            if head.model == loaded:
                return PrefillStep(self._admit())
            if not self.running:
                return LoadStep(head.model)
        return DecodeStep() if self.running else None

    def _next_to_prepare(self, loaded: str | None) -> Sequence | None:
        """Every other step at most, so that those that run are not held up by many that come."""
        found = None
        if not (self._has_just_prepared and self.num_running):
            waiting = (s for s in self.waiting if s.model == loaded and s.prompt is None)
            found = next(waiting, None)
        self._has_just_prepared = found is not None
        return found

    def prefilled(self, sequence: Sequence) -> None:
        """The prompt is through: from the next step on, the sequence decodes."""
        assert sequence is self.prefilling
        self.prefilling = None
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget the sequence, wherever it is."""
        if sequence is self.prefilling:
            self.prefilling = None
        elif sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def waiting_for(self, model: str) -> list[Sequence]:
        return [sequence for sequence in self.waiting if sequence.model == model]

    def sequences(self) -> list[Sequence]:
        middle = [self.prefilling] if self.prefilling else []
        return [*self.running, *middle, *self.waiting]

    def _admit(self) -> Sequence:
        sequence = self.waiting.popleft()
        sequence.status = SequenceStatus.PREFILLING
        self.prefilling = sequence
        return sequence
