"""Who begins next, and how much of a prompt runs between the steps of those that are written."""

from __future__ import annotations

from dataclasses import replace

from mlx_server.engine.pace import MIN_CHUNK
from mlx_server.engine.scheduler import (
    BURST_STALLS,
    MAX_WAITING_PICTURE_BYTES,
    MAX_WITH_PICTURES,
)
from mlx_server.engine.sequence import PromptOnly, Sequence
from mlx_server.engine.steps import DecodeStep, LoadStep, PrefillStep, PrepareStep
from tests.scheduling import (
    PATIENCE_S,
    STALL_S,
    add,
    begin_all,
    make_scheduler,
    make_sequence,
    prefill_step,
)
from tests.simulated_engine import FakeWorkload


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


def test_a_prompt_that_is_through_joins_behind_a_step_of_the_others() -> None:
    workload = FakeWorkload()
    scheduler = make_scheduler(workload, max_num_seqs=2)
    first, second = make_sequence(0), make_sequence(1)
    assert scheduler.may_join(10.0)
    add(scheduler, first)
    begin_all(scheduler)
    add(scheduler, second)
    step = prefill_step(scheduler)
    assert scheduler.may_join(STALL_S / 4)
    assert not scheduler.may_join(STALL_S)
    workload.left[second.uid] = 0
    scheduler.ran(step, STALL_S, 100)
    decode = scheduler.next_step("a", 0.0)
    assert decode == DecodeStep()
    scheduler.ran(decode, 0.01)
    assert prefill_step(scheduler).sequence is second
    assert scheduler.may_join(0.0)


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


def prompt_only(uid: int, model: str = "a") -> Sequence:
    sequence = make_sequence(uid, model, is_prepared=False)
    sequence.request = replace(sequence.request, only_prepare=PromptOnly())
    return sequence


def test_who_wants_the_prompt_alone_is_done_when_it_is_prepared() -> None:
    scheduler = make_scheduler()
    sequence = prompt_only(0)
    add(scheduler, sequence)
    assert scheduler.next_step(None, 0.0) == LoadStep("a")
    assert scheduler.next_step("a", 0.0) == PrepareStep(sequence)
    scheduler.finish(sequence)
    assert not scheduler.has_work


def test_many_who_want_the_prompt_alone_do_not_hold_up_another_model_for_ever() -> None:
    scheduler = make_scheduler()
    first, other = prompt_only(0), make_sequence(1, "b")
    add(scheduler, first)
    scheduler.next_step(None, 0.0)
    add(scheduler, other, now=1.0)
    assert scheduler.next_step("a", 1.0) == PrepareStep(first)
    scheduler.finish(first)
    early, late = prompt_only(2), prompt_only(3)
    add(scheduler, early, now=1.0)
    add(scheduler, late, now=2.0)
    assert scheduler.next_step("a", 1.0 + PATIENCE_S) == PrepareStep(early)
    scheduler.finish(early)
    assert scheduler.next_step("a", 1.0 + PATIENCE_S) == LoadStep("b")
    scheduler.finish(other)
    assert scheduler.next_step("b", 1.0 + PATIENCE_S) == LoadStep("a")
    assert scheduler.next_step("a", 1.0 + PATIENCE_S) == PrepareStep(late)


def test_a_decode_step_comes_between_those_who_want_the_prompt_alone() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_sequence(0))
    begin_all(scheduler)
    first, second = prompt_only(1), prompt_only(2)
    add(scheduler, first, second)
    assert scheduler.next_step("a", 0.0) == PrepareStep(first)
    scheduler.finish(first)
    assert scheduler.next_step("a", 0.0) == DecodeStep()
    assert scheduler.next_step("a", 0.0) == PrepareStep(second)
