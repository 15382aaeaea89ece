"""Which step the engine takes next.

Pure Python: knows sequences and model ids, no arrays; the time is told to it.

Sequences begin in the order in which they came. Those of one model decode together; `Turns` says
when another model's begin. A prompt is prefilled in chunks between decode steps, so that running
sequences wait for no more than `max_decode_stall_s` of it. While a long prompt is on its way, a
much shorter one may pass it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from mlx_server.engine.pace import MIN_CHUNK, Pace
from mlx_server.engine.sequence import Sequence, SequenceStatus
from mlx_server.engine.steps import DecodeStep, LoadStep, PrefillStep, PrepareStep, Step
from mlx_server.engine.turns import Turns

# A long prompt and one that passes it.
MAX_PREFILLING = 2
# How many of the waiting are looked at for one that may pass a long prompt.
MAX_OVERTAKERS = 16
# Pictures of prepared prompts are in memory, so no more of these wait with theirs ready.
MAX_WITH_PICTURES = 8
MAX_WAITING_PICTURE_BYTES = 256 << 20
# Between their first token and their second, sequences that begin together may wait for one another
# this many times the longest stall: a decode step costs little more for all of them than for one.
BURST_STALLS = 16
# To join, a long row has the state of all others copied to its length. After a chunk that took this
# share of the longest stall, the running sequences have a step before that.
JOIN_SHARE = 0.5


class Workload(Protocol):
    """What the scheduler must ask about prompts, of which it knows nothing itself."""

    def num_left(self, sequence: Sequence) -> int:
        """Prompt tokens that have still to be prefilled."""

    def is_shared(self, sequence: Sequence, earlier: Sequence) -> bool:
        """Whether `earlier` will leave KV state that spares `sequence` a part of its prefill."""

    def reserve(self, sequence: Sequence) -> bool:
        """Set aside the memory for the sequence; False if others hold it now."""


class Scheduler:
    """`waiting` is in the order of arrival; the first of `prefilling` came before the second."""

    def __init__(
        self,
        workload: Workload,
        *,
        max_num_seqs: int = 32,
        max_decode_stall_s: float = 0.25,
        swap_patience_s: float = 5.0,
    ) -> None:
        self._workload = workload
        self._max_num_seqs = max_num_seqs
        self._max_stall_s = max_decode_stall_s
        self._turns = Turns(swap_patience_s)
        self._pace = Pace()
        self._stalled_s = 0.0
        self._has_decoded = False
        self._has_just_prepared = False
        self._has_just_passed = False
        self.waiting: list[Sequence] = []
        self.prefilling: list[Sequence] = []
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.prefilling or self.running)

    @property
    def num_running(self) -> int:
        return len(self.running) + len(self.prefilling)

    def add(self, sequence: Sequence, now: float) -> None:
        sequence.arrived = now
        self.waiting.append(sequence)

    def next_step(self, loaded: str | None, now: float) -> Step | None:
        """`loaded` is the model in the slot. Admits waiting sequences when there is room."""
        if loaded != self._turns.model:
            self._pace = Pace()
        self._turns.note(loaded, now)
        if (unprepared := self._next_to_prepare(loaded, now)) is not None:
            return PrepareStep(unprepared)
        self._admit(now)
        if (prefill := self._prefill_step(now)) is not None:
            return prefill
        if self.running:
            return DecodeStep()
        model = self._turns.give(self.waiting)
        return None if model is None else LoadStep(model)

    def ran(
        self, step: Step, seconds: float, num_tokens: int = 0, prefill_s: float | None = None
    ) -> None:
        """Say how long a step took in all, how many prompt tokens it ran, and how long that took
        (all of it, if `prefill_s` is not given).
        """
        if isinstance(step, DecodeStep):
            self._stalled_s = 0.0
            self._has_decoded = True
            return
        if isinstance(step, PrefillStep):
            self._pace.saw_prefill(num_tokens, seconds if prefill_s is None else prefill_s)
        self._stalled_s = self._stalled_s + seconds if self.running else 0.0

    def may_join(self, seconds: float) -> bool:
        """Whether a prompt that is through after a chunk of so long may join those that run now;
        otherwise its turn comes again.
        """
        if not self.running or not self._has_decoded:
            return True
        return self._stalled_s + seconds < JOIN_SHARE * self._max_stall_s

    def prefilled(self, sequence: Sequence) -> None:
        """The prompt is through: from the next step on, the sequence decodes."""
        self.prefilling.remove(sequence)
        sequence.status = SequenceStatus.RUNNING
        if not self.running:
            self._stalled_s = 0.0
            self._has_decoded = False
        self.running.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget the sequence, wherever it is."""
        if sequence.status is SequenceStatus.PREFILLING:
            self.prefilling.remove(sequence)
        elif sequence.status is SequenceStatus.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        sequence.status = SequenceStatus.FINISHED

    def waiting_for(self, model: str) -> list[Sequence]:
        return [sequence for sequence in self.waiting if sequence.model == model]

    def sequences(self) -> list[Sequence]:
        return [*self.running, *self.prefilling, *self.waiting]

    def _next_to_prepare(self, loaded: str | None, now: float) -> Sequence | None:
        """Every other step at most, so that those that could go on are not held up by many that
        come. What needs nothing else is all done then, and begins only while its turn lasts.
        """
        found = None
        waiting = [s for s in self.waiting if s.model == loaded]
        others = self.num_running or any(s.prompt is not None for s in waiting)
        if not (self._has_just_prepared and others):
            with_pictures = sum(s.has_images for s in waiting if s.prompt is not None)
            picture_bytes = sum(s.picture_bytes for s in waiting)
            has_room = (
                with_pictures < MAX_WITH_PICTURES and picture_bytes < MAX_WAITING_PICTURE_BYTES
            )
            last_arrival = self._turns.last_arrival(self.waiting, now)
            for sequence in waiting:
                is_welcome = not sequence.has_images or has_room
                is_late = sequence.arrived > last_arrival
                if sequence.request.only_prepare is not None and is_late:
                    continue
                if sequence.prompt is None and is_welcome:
                    found = sequence
                    break
        self._has_just_prepared = found is not None
        return found

    def _admit(self, now: float) -> None:
        while len(self.prefilling) < MAX_PREFILLING and self.num_running < self._max_num_seqs:
            sequence = self._overtaker(now) if self.prefilling else self._first(now)
            if sequence is None or not self._workload.reserve(sequence):
                return
            self.waiting.remove(sequence)
            sequence.status = SequenceStatus.PREFILLING
            self.prefilling.append(sequence)

    def _first(self, now: float) -> Sequence | None:
        return next(self._candidates(now), None)

    def _overtaker(self, now: float) -> Sequence | None:
        """One of less than half of the work, to which the long prompt's KV state is of no use."""
        long = self.prefilling[0]
        limit = self._workload.num_left(long) // 2
        if limit == 0:
            return None
        for sequence in islice(self._candidates(now), MAX_OVERTAKERS):
            is_short = self._workload.num_left(sequence) < limit
            if is_short and not self._workload.is_shared(sequence, long):
                return sequence
        return None

    def _candidates(self, now: float) -> Iterator[Sequence]:
        """Waiting sequences that may begin now, in the order of arrival."""
        last_arrival = self._turns.last_arrival(self.waiting, now)
        for sequence in self.waiting:
            is_ready = sequence.model == self._turns.model and sequence.prompt is not None
            if is_ready and sequence.arrived <= last_arrival:
                yield sequence

    def _prefill_step(self, now: float) -> PrefillStep | None:
        """None if there is nothing to prefill or if a decode step is due first."""
        if not self.prefilling:
            return None
        max_tokens = None
        if not self.may_join(0.0) and any(map(self._is_through, self.prefilling)):
            return None
        if self.running and not self._is_burst(now):
            max_tokens = self._pace.tokens_within(self._max_stall_s - self._stalled_s)
            if max_tokens is not None and max_tokens < MIN_CHUNK:
                if self._stalled_s > 0:
                    return None
                max_tokens = MIN_CHUNK
        self._has_just_passed = len(self.prefilling) > 1 and not self._has_just_passed
        return PrefillStep(self.prefilling[-1 if self._has_just_passed else 0], max_tokens)

    def _is_through(self, sequence: Sequence) -> bool:
        return self._workload.num_left(sequence) == 0

    def _is_burst(self, now: float) -> bool:
        """Whether all that runs has just begun, and what is to begin beside it is soon through."""
        if self._has_decoded:
            return False
        room = self._max_num_seqs - self.num_running
        left_s = BURST_STALLS * self._max_stall_s - self._stalled_s
        for sequence in [*self.prefilling, *islice(self._candidates(now), room)]:
            left_s -= self._pace.prefill_s(self._workload.num_left(sequence))
            if left_s < 0:
                return False
        return True
