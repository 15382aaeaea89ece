"""No sequence is lost or runs twice, and they run in the order in which they came."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mlx_server.engine.scheduler import DecodeStep, LoadStep, PrefillStep, PrepareStep, Scheduler
from mlx_server.engine.sequence import GenerationRequest, RawPrompt, Sequence, SequenceStatus


def make_sequence(uid: int, model: str = "a", *, is_prepared: bool = True) -> Sequence:
    request = GenerationRequest(f"r{uid}", model, RawPrompt("x"))
    prompt = "ready" if is_prepared else None
    return Sequence(uid, request, 0, model, seed=0, deadline=0.0, prompt=prompt)


def test_an_empty_scheduler_has_nothing_to_do() -> None:
    scheduler = Scheduler()
    assert not scheduler.has_work
    assert scheduler.next_step("a") is None
    assert scheduler.next_step(None) is None


def test_a_model_is_loaded_then_the_prompt_runs_then_tokens() -> None:
    scheduler = Scheduler()
    sequence = make_sequence(0)
    scheduler.add(sequence)
    assert scheduler.next_step(None) == LoadStep("a")
    assert scheduler.next_step("a") == PrefillStep(sequence)
    assert scheduler.next_step("a") == PrefillStep(sequence)
    statuses = [sequence.status]
    scheduler.prefilled(sequence)
    assert scheduler.next_step("a") == DecodeStep()
    statuses.append(sequence.status)
    scheduler.finish(sequence)
    statuses.append(sequence.status)
    assert statuses == ["prefilling", "running", "finished"]
    assert scheduler.next_step("a") is None


def test_a_new_prompt_runs_before_the_next_tokens_if_there_is_room() -> None:
    scheduler = Scheduler(max_num_seqs=2)
    first, second, third = (make_sequence(i) for i in range(3))
    for sequence in (first, second, third):
        scheduler.add(sequence)
    scheduler.next_step("a")
    scheduler.prefilled(first)
    assert scheduler.next_step("a") == PrefillStep(second)
    scheduler.prefilled(second)
    assert scheduler.next_step("a") == DecodeStep()
    scheduler.finish(first)
    assert scheduler.next_step("a") == PrefillStep(third)


def test_prompts_are_built_before_their_turn_between_the_steps_of_others() -> None:
    scheduler = Scheduler()
    first, second, third = (make_sequence(i, is_prepared=False) for i in range(3))
    for sequence in (first, second, third):
        scheduler.add(sequence)
    steps = []
    for _ in range(7):
        step = scheduler.next_step("a")
        steps.append(step)
        if isinstance(step, PrepareStep):
            step.sequence.prompt = "ready"
        elif isinstance(step, PrefillStep):
            scheduler.prefilled(step.sequence)
    assert steps == [
        *(PrepareStep(sequence) for sequence in (first, second, third)),
        PrefillStep(first),
        *[DecodeStep()] * 3,
    ]
    late = make_sequence(3, is_prepared=False)
    scheduler.add(late)
    assert scheduler.next_step("a") == PrepareStep(late)
    assert scheduler.next_step("a") == DecodeStep(), "those that run are not held up"
    assert scheduler.next_step("a") == PrepareStep(late)


def test_prompts_for_another_model_are_built_once_it_is_loaded() -> None:
    scheduler = Scheduler()
    other = make_sequence(0, "b", is_prepared=False)
    scheduler.add(other)
    assert scheduler.next_step("a") == LoadStep("b")
    assert scheduler.next_step("b") == PrepareStep(other)


def test_another_model_waits_until_nothing_runs() -> None:
    scheduler = Scheduler(max_num_seqs=4)
    first, other, last = make_sequence(0), make_sequence(1, "b"), make_sequence(2)
    for sequence in (first, other, last):
        scheduler.add(sequence)
    scheduler.next_step("a")
    scheduler.prefilled(first)
    for _ in range(3):
        assert scheduler.next_step("a") == DecodeStep(), "the last one may not overtake"
    scheduler.finish(first)
    assert scheduler.next_step("a") == LoadStep("b")
    assert scheduler.next_step("b") == PrefillStep(other)
    scheduler.finish(other)
    assert scheduler.next_step("b") == LoadStep("a")


def test_finishing_twice_is_harmless() -> None:
    scheduler = Scheduler()
    sequences = [make_sequence(i) for i in range(3)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.next_step("a")
    scheduler.prefilled(sequences[0])
    for sequence in [*sequences, *sequences]:
        scheduler.finish(sequence)
    assert not scheduler.has_work
    assert scheduler.sequences() == []


def test_those_who_wait_for_a_model_are_listed_in_order() -> None:
    scheduler = Scheduler()
    sequences = [make_sequence(i, "ab"[i % 2]) for i in range(5)]
    for sequence in sequences:
        scheduler.add(sequence)
    scheduler.next_step("a")
    assert scheduler.waiting_for("a") == [sequences[2], sequences[4]]
    assert scheduler.waiting_for("b") == [sequences[1], sequences[3]]
    assert scheduler.sequences() == sequences


@dataclass
class Book:
    """What a careful clerk knows of the sequences."""

    added: list[Sequence] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    def open(self) -> list[Sequence]:
        return [s for s in self.added if s.uid not in self.gone]


class AnyOrderOfEvents(RuleBasedStateMachine):
    """Adds, steps, ends and aborts in any order, for up to three models."""

    @initialize(max_num_seqs=st.integers(1, 4))
    def begin(self, max_num_seqs: int) -> None:
        self.scheduler = Scheduler(max_num_seqs)
        self.book = Book()
        self.loaded: str | None = None

    @rule(model=st.sampled_from("abc"))
    def add(self, model: str) -> None:
        sequence = make_sequence(len(self.book.added), model)
        self.book.added.append(sequence)
        self.scheduler.add(sequence)

    @rule(is_last_chunk=st.booleans())
    def step(self, is_last_chunk: bool) -> None:
        scheduler, book = self.scheduler, self.book
        head = scheduler.waiting[0] if scheduler.waiting else None
        was_prefilling = scheduler.prefilling
        step = scheduler.next_step(self.loaded)
        if isinstance(step, LoadStep):
            assert not scheduler.running, "a model may not be taken from those who run"
            assert scheduler.prefilling is None
            assert head is not None
            assert step.model == head.model != self.loaded
            self.loaded = step.model
        elif isinstance(step, PrefillStep):
            assert step.sequence.model == self.loaded
            if was_prefilling is None:
                assert step.sequence is head, "first come, first served"
                assert step.sequence not in book.admitted, "it may not run twice"
                book.admitted.append(step.sequence)
            else:
                assert step.sequence is was_prefilling
            if is_last_chunk:
                scheduler.prefilled(step.sequence)
        elif isinstance(step, DecodeStep):
            assert scheduler.running
            assert {s.model for s in scheduler.running} == {self.loaded}
        else:
            assert not book.open(), "whoever waits must be served"

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
        assert scheduler.num_running <= scheduler.max_num_seqs
        assert [s.uid for s in scheduler.waiting] == sorted(s.uid for s in scheduler.waiting)
        assert all(s.status is SequenceStatus.RUNNING for s in scheduler.running)
        assert all(s.status is SequenceStatus.WAITING for s in scheduler.waiting)


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)


@pytest.mark.parametrize("max_num_seqs", [1, 3])
def test_everybody_is_served_in_the_end(max_num_seqs: int) -> None:
    scheduler = Scheduler(max_num_seqs)
    chance = random.Random(max_num_seqs)
    sequences = [make_sequence(i, chance.choice("abc")) for i in range(40)]
    for sequence in sequences:
        scheduler.add(sequence)
    served = drain(scheduler, lambda s: chance.random() < 0.3)
    assert sorted(served) == list(range(40))
    assert served == sorted(served) or max_num_seqs > 1


def drain(scheduler: Scheduler, is_done: Callable[[Sequence], bool]) -> list[int]:
    """Take steps until nothing is left; the uids in the order in which they ended."""
    loaded, served = None, list[int]()
    for _ in range(10_000):
        step = scheduler.next_step(loaded)
        if step is None:
            return served
        if isinstance(step, LoadStep):
            loaded = step.model
        elif isinstance(step, PrefillStep):
            scheduler.prefilled(step.sequence)
        else:
            for sequence in [s for s in scheduler.running if is_done(s)]:
                scheduler.finish(sequence)
                served.append(sequence.uid)
    raise AssertionError("it never ends")
