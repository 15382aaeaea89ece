"""A scheduler and sequences that wait for it, without an engine around them."""

from __future__ import annotations

from mlx_server.engine.scheduler import Scheduler
from mlx_server.engine.sequence import GenerationRequest, RawPrompt, Sequence
from mlx_server.engine.steps import DecodeStep, PrefillStep
from tests.simulated_engine import FakeWorkload

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


def prefill_step(scheduler: Scheduler) -> PrefillStep:
    step = scheduler.next_step("a", 0.0)
    assert isinstance(step, PrefillStep)
    return step
