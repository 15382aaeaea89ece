"""No sequence is lost, runs twice or waits for ever, and running ones are not held up."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mlx_server.engine.pace import MIN_CHUNK, Pace
from mlx_server.engine.scheduler import (
    BURST_STALLS,
    MAX_WAITING_PICTURE_BYTES,
    MAX_WITH_PICTURES,
    Scheduler,
)
from mlx_server.engine.sequence import GenerationRequest, RawPrompt, Sequence, SequenceStatus
from mlx_server.engine.steps import DecodeStep, LoadStep, PrefillStep, PrepareStep
from tests.simulated_engine import Arrival, FakeWorkload, SimulatedEngine

STALL_S = 0.25
PATIENCE_S = 5.0


def make_sequence(uid: int, model: str = "a", *, is_prepared: bool = True) -> Sequence:
    request = GenerationRequest(f"r{uid}", model, RawPrompt("x"))
    prompt = "ready" if is_prepared else None
    return Sequence(uid, request, 0, model, seed=0, deadline=0.0, prompt=prompt)


def make_scheduler(workload: FakeWorkload | None = None, *, max_num_seqs: int = 1) -> Scheduler:
    return Scheduler(workload or FakeWorkload(), max_num_seqs=max_num_seqs)


def add(scheduler: Scheduler, *sequences: Sequence, now: float = 0.0) -> None:
    for sequence in sequences:
        scheduler.add(sequence, now)


def begin_all(scheduler: Scheduler, *, now: float = 0.0) -> None:
    """Prefill until nothing but decoding is left, and decode once."""
    while isinstance(step := scheduler.next_step("a", now), PrefillStep):
        scheduler.ran(step, 0.01, 100)
        scheduler.prefilled(step.sequence)
    assert step == DecodeStep()
    scheduler.ran(step, 0.01)


def test_an_empty_scheduler_has_nothing_to_do() -> None:
    scheduler = make_scheduler()
    assert not scheduler.has_work
    assert scheduler.next_step("a", 0.0) is None
    assert scheduler.next_step(None, 0.0) is None


def test_a_model_is_loaded_then_the_prompt_runs_then_tokens() -> None:
    scheduler = make_scheduler()
    sequence = make_sequence(0)
    add(scheduler, sequence)
    assert scheduler.next_step(None, 0.0) == LoadStep("a")
    assert scheduler.next_step("a", 0.0) == PrefillStep(sequence)
    assert scheduler.next_step("a", 0.0) == PrefillStep(sequence)
    statuses = [sequence.status]
    scheduler.prefilled(sequence)
    assert scheduler.next_step("a", 0.0) == DecodeStep()
    statuses.append(sequence.status)
    scheduler.finish(sequence)
    statuses.append(sequence.status)
    assert statuses == ["prefilling", "running", "finished"]
    assert scheduler.next_step("a", 0.0) is None


def test_a_new_prompt_begins_as_soon_as_there_is_room() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    first, second, third = (make_sequence(i) for i in range(3))
    add(scheduler, first, second, third)
    begin_all(scheduler)
    assert scheduler.running == [first, second]
    scheduler.finish(first)
    step = scheduler.next_step("a", 0.0)
    assert isinstance(step, PrefillStep)
    assert step.sequence is third


def test_prompts_are_built_before_their_turn_between_the_steps_of_others() -> None:
    scheduler = make_scheduler()
    first, second, third = (make_sequence(i, is_prepared=False) for i in range(3))
    add(scheduler, first, second, third)
    steps = []
    for _ in range(7):
        step = scheduler.next_step("a", 0.0)
        steps.append(step)
        if isinstance(step, PrepareStep):
            step.sequence.prompt = "ready"
        elif isinstance(step, PrefillStep):
            scheduler.prefilled(step.sequence)
    assert steps == [
        PrepareStep(first),
        PrefillStep(first),
        PrepareStep(second),
        DecodeStep(),
        PrepareStep(third),
        *[DecodeStep()] * 2,
    ]
    late = make_sequence(3, is_prepared=False)
    add(scheduler, late)
    assert scheduler.next_step("a", 0.0) == PrepareStep(late)
    assert scheduler.next_step("a", 0.0) == DecodeStep(), "those that run are not held up"
    assert scheduler.next_step("a", 0.0) == PrepareStep(late)


def test_prompts_for_another_model_are_built_once_it_is_loaded() -> None:
    scheduler = make_scheduler()
    other = make_sequence(0, "b", is_prepared=False)
    add(scheduler, other)
    assert scheduler.next_step("a", 0.0) == LoadStep("b")
    assert scheduler.next_step("b", 0.0) == PrepareStep(other)


def test_only_so_many_prompts_with_pictures_are_ready_before_their_turn() -> None:
    scheduler = make_scheduler()
    sequences = [make_sequence(i, is_prepared=False) for i in range(MAX_WITH_PICTURES + 2)]
    for sequence in sequences:
        sequence.has_images = True
    text = make_sequence(99, is_prepared=False)
    add(scheduler, *sequences, text)
    prepared = []
    for _ in range(40):
        step = scheduler.next_step("a", 0.0)
        if isinstance(step, PrepareStep):
            step.sequence.prompt = "ready"
            prepared.append(step.sequence)
    # the first one is not waiting any more
    assert prepared == [*sequences[:-1], text]


def test_pictures_wait_unprepared_behind_many_bytes_of_others() -> None:
    scheduler = make_scheduler()
    sequences = [make_sequence(i, is_prepared=False) for i in range(4)]
    for sequence in sequences:
        sequence.has_images = True
    add(scheduler, *sequences)
    prepared = []
    for _ in range(40):
        step = scheduler.next_step("a", 0.0)
        if isinstance(step, PrepareStep):
            step.sequence.prompt = "ready"
            step.sequence.picture_bytes = MAX_WAITING_PICTURE_BYTES // 2 + 1
            prepared.append(step.sequence)
    # the first one is not waiting any more, and the third makes it too many
    assert prepared == sequences[:3]


def test_a_model_that_cannot_be_loaded_has_had_its_turn() -> None:
    scheduler = make_scheduler()
    broken, other = make_sequence(0, "broken"), make_sequence(1, "b")
    add(scheduler, broken, other)
    assert scheduler.next_step(None, 0.0) == LoadStep("broken")
    again = make_sequence(2, "broken")
    add(scheduler, again)
    scheduler.finish(broken)
    # in the order of arrival a client who tries again could come first for ever
    scheduler.waiting.reverse()
    assert scheduler.next_step(None, 1.0) == LoadStep("b")


def test_a_cached_prompt_s_single_token_says_nothing_of_the_pace_of_long_ones() -> None:
    pace = Pace()
    pace.saw_prefill(128, 0.64)
    pace.saw_prefill(1, 0.08)
    assert pace.tokens_within(0.25) == 50


def test_the_loaded_model_serves_what_comes_while_others_have_patience() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    first, other, last = make_sequence(0), make_sequence(1, "b"), make_sequence(2)
    add(scheduler, first, other, last)
    begin_all(scheduler)
    assert scheduler.running == [first, last]
    scheduler.finish(first)
    assert scheduler.next_step("a", 1.0) == DecodeStep(), "a model is not taken from those who run"
    scheduler.finish(last)
    assert scheduler.next_step("a", 1.0) == LoadStep("b"), "nobody waits for an idle model"


def test_patience_ends() -> None:
    scheduler = make_scheduler(max_num_seqs=4)
    first, other, late = make_sequence(0), make_sequence(1, "b"), make_sequence(2)
    add(scheduler, first, other)
    begin_all(scheduler)
    add(scheduler, late, now=PATIENCE_S + 1)
    assert scheduler.next_step("a", PATIENCE_S + 1) == DecodeStep()
    scheduler.finish(first)
    assert scheduler.next_step("a", PATIENCE_S + 1) == LoadStep("b")
    assert scheduler.next_step("b", PATIENCE_S + 2) == PrefillStep(other)


def test_what_came_before_the_other_model_s_request_is_served_before_it() -> None:
    scheduler = make_scheduler(max_num_seqs=1)
    first, second, other = make_sequence(0), make_sequence(1), make_sequence(2, "b")
    add(scheduler, first, second, other)
    begin_all(scheduler)
    scheduler.finish(first)
    step = scheduler.next_step("a", 100 * PATIENCE_S)
    assert isinstance(step, PrefillStep)
    assert step.sequence is second


def test_a_turn_serves_what_has_gathered_meanwhile() -> None:
    """Both models are asked all the time: what came during the load belongs to the new turn."""
    scheduler = make_scheduler(max_num_seqs=4)
    add(scheduler, make_sequence(0, "b"))
    assert scheduler.next_step("a", 0.0) == LoadStep("b")
    add(scheduler, make_sequence(1, "a"), now=1.0)
    add(scheduler, make_sequence(2, "b"), now=9.0)
    assert isinstance(scheduler.next_step("b", 10.0), PrefillStep)
    scheduler.prefilled(scheduler.prefilling[0])
    step = scheduler.next_step("b", 10.0)
    assert isinstance(step, PrefillStep)
    assert step.sequence.uid == 2


def test_the_model_whose_turn_is_longest_ago_comes_next() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_sequence(0, "b"), make_sequence(1, "c"))
    assert scheduler.next_step("a", 0.0) == LoadStep("b")
    scheduler.finish(scheduler.waiting[0])
    add(scheduler, make_sequence(2, "a"))
    assert scheduler.next_step("b", 0.0) == LoadStep("c")


def test_running_answers_wait_for_no_more_of_a_prompt_than_allowed() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=2)
    running, long = make_sequence(0), make_sequence(1)
    add(scheduler, running)
    begin_all(scheduler)
    workload.left[long.uid] = 10_000
    add(scheduler, long)
    step = scheduler.next_step("a", 0.0)
    assert step == PrefillStep(long, int(STALL_S / 0.0001))
    scheduler.ran(step, STALL_S, 2500)
    assert scheduler.next_step("a", 0.0) == DecodeStep()
    scheduler.ran(DecodeStep(), 0.01)
    assert isinstance(scheduler.next_step("a", 0.0), PrefillStep)


def test_a_slow_device_runs_small_chunks_and_makes_progress() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=2)
    running, long = make_sequence(0), make_sequence(1)
    add(scheduler, running)
    step = scheduler.next_step("a", 0.0)
    assert isinstance(step, PrefillStep)
    scheduler.ran(step, 10.0, 10)
    scheduler.prefilled(running)
    scheduler.ran(DecodeStep(), 1.0)
    workload.left[long.uid] = 10_000
    add(scheduler, long)
    for _ in range(3):
        step = scheduler.next_step("a", 0.0)
        assert step == PrefillStep(long, MIN_CHUNK)
        scheduler.ran(step, 20.0, MIN_CHUNK)
        assert scheduler.next_step("a", 0.0) == DecodeStep()
        scheduler.ran(DecodeStep(), 1.0)


def test_those_who_begin_together_are_prefilled_before_they_decode() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=8)
    sequences = [make_sequence(i) for i in range(4)]
    workload.left = {s.uid: 100 for s in sequences}
    add(scheduler, *sequences)
    for sequence in sequences:
        step = scheduler.next_step("a", 0.0)
        assert step == PrefillStep(sequence)
        scheduler.ran(step, 0.9 * BURST_STALLS * STALL_S / 4, 100)
        workload.left[sequence.uid] = 0
        scheduler.prefilled(sequence)
    assert scheduler.next_step("a", 0.0) == DecodeStep()


def test_a_burst_that_would_take_too_long_is_interleaved() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=20)
    sequences = [make_sequence(i) for i in range(20)]
    workload.left = {s.uid: 100 for s in sequences}
    add(scheduler, *sequences)
    step = scheduler.next_step("a", 0.0)
    scheduler.ran(PrefillStep(sequences[0]), STALL_S * 2, 100)
    scheduler.prefilled(sequences[0])
    steps = []
    for _ in range(4):
        step = scheduler.next_step("a", 0.0)
        steps.append(type(step))
        assert isinstance(step, PrefillStep | DecodeStep)
        scheduler.ran(step, STALL_S, 50)
    assert steps == [PrefillStep, DecodeStep, PrefillStep, DecodeStep]


def test_a_short_prompt_passes_a_long_one_that_goes_on() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=8)
    long, short, other = (make_sequence(i) for i in range(3))
    workload.left = {0: 10_000, 1: 100, 2: 9_000}
    add(scheduler, long)
    assert scheduler.next_step("a", 0.0) == PrefillStep(long)
    add(scheduler, short, other)
    chosen = [step.sequence for _ in range(4) if (step := prefill_step(scheduler))]
    assert chosen == [short, long, short, long]


def test_one_who_shares_the_long_prompt_waits_for_it() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=8)
    long, same = make_sequence(0), make_sequence(1)
    workload.left = {0: 10_000, 1: 100}
    workload.shared = {(1, 0)}
    add(scheduler, long, same)
    assert [prefill_step(scheduler).sequence for _ in range(3)] == [long] * 3


def prefill_step(scheduler: Scheduler) -> PrefillStep:
    step = scheduler.next_step("a", 0.0)
    assert isinstance(step, PrefillStep)
    return step


def test_who_has_no_memory_waits_and_nobody_behind_passes() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=8)
    first, big, small = (make_sequence(i) for i in range(3))
    workload.too_big = {1}
    add(scheduler, first, big, small)
    begin_all(scheduler)
    assert scheduler.running == [first]
    workload.too_big = set()
    scheduler.finish(first)
    assert prefill_step(scheduler).sequence is big


def test_finishing_twice_is_harmless() -> None:
    scheduler = make_scheduler()
    sequences = [make_sequence(i) for i in range(3)]
    add(scheduler, *sequences)
    scheduler.next_step("a", 0.0)
    scheduler.prefilled(sequences[0])
    for sequence in [*sequences, *sequences]:
        scheduler.finish(sequence)
    assert not scheduler.has_work
    assert scheduler.sequences() == []


def test_those_who_wait_for_a_model_are_listed_in_order() -> None:
    scheduler = make_scheduler()
    sequences = [make_sequence(i, "ab"[i % 2]) for i in range(5)]
    add(scheduler, *sequences)
    scheduler.next_step("a", 0.0)
    assert scheduler.waiting_for("a") == [sequences[2], sequences[4]]
    assert scheduler.waiting_for("b") == [sequences[1], sequences[3]]
    assert scheduler.sequences() == sequences


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

arrivals = st.lists(
    st.builds(
        Arrival,
        after_s=st.floats(0, 4),
        model=st.sampled_from("abc"),
        num_prompt_tokens=st.integers(1, 4000),
        num_new_tokens=st.integers(1, 60),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(arrivals=arrivals, max_num_seqs=st.integers(1, 8), load_s=st.floats(0, 20))
def test_nobody_starves(arrivals: list[Arrival], max_num_seqs: int, load_s: float) -> None:
    """Everybody is served, and nobody waits for more than one other turn of every other model."""
    engine = SimulatedEngine(max_num_seqs=max_num_seqs, load_s=load_s)
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


@pytest.mark.parametrize(("num_clients", "max_loads"), [(1, 24), (4, 6)])
def test_clients_that_alternate_between_two_models_cost_few_loads(
    num_clients: int, max_loads: int
) -> None:
    engine = SimulatedEngine(max_num_seqs=32, load_s=0.4, loaded="a")
    engine.run_clients(
        [["ab"[(c + i) % 2] for i in range(24 // num_clients)] for c in range(num_clients)]
    )
    assert len(engine.served) == 24
    assert engine.num_loads <= max_loads
