"""Which model is in the slot, how long it stays there, and which one is next."""

from __future__ import annotations

import pytest

from mlx_server.engine.steps import DecodeStep, LoadStep, PrefillStep
from tests.scheduling import (
    PATIENCE_S,
    add,
    begin_all,
    make_scheduler,
    make_sequence,
)
from tests.simulated_engine import SimulatedEngine


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
