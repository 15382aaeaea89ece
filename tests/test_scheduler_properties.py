"""No sequence is lost, runs twice or waits for ever, and running ones are not held up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mlx_server.engine.scheduler import BURST_STALLS
from mlx_server.engine.sequence import Sequence, SequenceStatus
from mlx_server.engine.steps import LoadStep, PrefillStep
from tests.scheduling import (
    STALL_S,
    make_scheduler,
    make_sequence,
)
from tests.simulated_engine import Arrival, FakeWorkload, SimulatedEngine


@dataclass
class Book:
    """What a careful clerk knows of the sequences."""

    added: list[Sequence] = field(default_factory=list)
    admitted: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    def open(self) -> list[Sequence]:
        return [s for s in self.added if s.uid not in self.gone]


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Adds, steps, ends and aborts in any order, for up to three models."""

    @initialize(max_num_seqs=st.integers(1, 4))
    def begin(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.workload = FakeWorkload()
        self.scheduler = make_scheduler(self.workload, max_num_seqs=max_num_seqs)
        self.book = Book()
        self.loaded: str | None = None
        self.now = 0.0

    @rule(model=st.sampled_from("abc"), size=st.integers(0, 5000))
    def add(self, model: str, size: int) -> None:
        sequence = make_sequence(len(self.book.added), model)
        self.workload.left[sequence.uid] = size
        self.book.added.append(sequence)
        self.scheduler.add(sequence, self.now)

    @rule(is_last_chunk=st.booleans(), seconds=st.floats(0, 3))
    def step(self, is_last_chunk: bool, seconds: float) -> None:
        scheduler, book = self.scheduler, self.book
        step = scheduler.next_step(self.loaded, self.now)
        self.now += seconds
        if step is None:
            assert not book.open(), "whoever waits must be served"
            return
        scheduler.ran(step, seconds, 100)
        if isinstance(step, LoadStep):
            assert not scheduler.running, "a model may not be taken from those who run"
            assert not scheduler.prefilling
            assert scheduler.waiting_for(step.model)
            assert step.model != self.loaded
            self.loaded = step.model
        elif isinstance(step, PrefillStep):
            assert step.sequence.model == self.loaded
            assert step.sequence.uid not in {s.uid for s in scheduler.running}
            book.admitted.add(step.sequence.uid)
            if is_last_chunk:
                scheduler.prefilled(step.sequence)
        else:
            assert scheduler.running
            assert {s.model for s in scheduler.running} == {self.loaded}

    @precondition(lambda self: self.scheduler.has_work)
    @rule(choose=st.randoms(use_true_random=False))
    def end_one(self, choose: random.Random) -> None:
        sequence = choose.choice(self.book.open())
        self.scheduler.finish(sequence)
        self.book.gone.add(sequence.uid)
        assert sequence.status is SequenceStatus.FINISHED

    @invariant()
    def nobody_is_lost(self) -> None:
        scheduler = self.scheduler
        held = scheduler.sequences()
        assert sorted(s.uid for s in held) == [s.uid for s in self.book.open()]
        assert scheduler.has_work == bool(held)
        assert scheduler.num_running <= self.max_num_seqs
        assert [s.uid for s in scheduler.waiting] == sorted(s.uid for s in scheduler.waiting)
        assert all(s.status is SequenceStatus.RUNNING for s in scheduler.running)
        assert all(s.status is SequenceStatus.WAITING for s in scheduler.waiting)


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)

MOST_PROMPT, MOST_NEW = 4000, 60
arrivals = st.lists(
    st.builds(
        Arrival,
        after_s=st.floats(0, 4),
        model=st.sampled_from("abc"),
        num_prompt_tokens=st.integers(1, MOST_PROMPT),
        num_new_tokens=st.integers(1, MOST_NEW),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    arrivals=arrivals,
    max_num_seqs=st.integers(1, 8),
    load_s=st.floats(0, 20),
    room=st.integers(MOST_PROMPT + MOST_NEW, 2 * MOST_PROMPT),
)
def test_nobody_starves(
    arrivals: list[Arrival], max_num_seqs: int, load_s: float, room: int
) -> None:
    """Everybody is served, and nobody waits for more than one other turn of every other model, also
    where there is memory for hardly more than one.
    """
    engine = SimulatedEngine(max_num_seqs=max_num_seqs, load_s=load_s)
    engine.workload.room = room
    engine.run(arrivals)
    assert sorted(engine.served) == list(range(len(arrivals)))
    for uid in range(len(arrivals)):
        assert max(engine.num_turns_while_waiting(uid).values(), default=0) <= 1


@settings(max_examples=100, deadline=None, derandomize=True)
@given(arrivals=arrivals, max_num_seqs=st.integers(2, 8))
def test_no_running_answer_waits_longer_than_allowed(
    arrivals: list[Arrival], max_num_seqs: int
) -> None:
    engine = SimulatedEngine(max_num_seqs=max_num_seqs, load_s=1.0)
    engine.run(arrivals)
    assert engine.longest_stall_s <= STALL_S + 2 * engine.decode_s
    assert engine.longest_burst_stall_s <= BURST_STALLS * STALL_S + 2 * engine.decode_s
