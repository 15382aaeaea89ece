"""The MLX thread outlives every failure, and nobody waits for an answer in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlx_server.config import EngineConfig
from mlx_server.engine.kv_caches import KVCaches
from mlx_server.engine.prefix_cache import Keys, PrefixCache
from mlx_server.engine.runner import Runner
from mlx_server.engine.sequence import Delta, Prepared, Progress, Started
from mlx_server.engine.worker import OUT_OF_MEMORY_MARKS, failure_of
from mlx_server.errors import (
    EngineStopped,
    GenerationFailed,
    InvalidRequest,
    ModelLoadFailed,
    ModelUnavailable,
    ServerError,
)
from tests.patience import HANG_S
from tests.scripted import Script
from tests.worker_harness import (
    Harness,
    ask,
    is_last,
    running_worker,
    wait_until,
)


class UnwillingCache(PrefixCache):
    """Fails so many times to keep anything, as for lack of memory."""

    def __init__(self, num_failures: int) -> None:
        super().__init__(1 << 30)
        self.num_failures = num_failures

    def insert(self, keys: Keys, caches: KVCaches, variant: str = "") -> None:
        if self.num_failures:
            self.num_failures -= 1
            raise RuntimeError("no room")
        super().insert(keys, caches, variant)


def refuse_to_keep(harness: Harness, num_failures: int = 1) -> None:
    runner = harness.slot.runner
    assert runner is not None
    # an answer is out before its state is put away
    wait_until(lambda: len(runner.prefix_cache) > 0)
    runner.prefix_cache = UnwillingCache(num_failures)


def code_of(outcome: str | ServerError) -> str | None:
    assert isinstance(outcome, ServerError), f"an answer in place of an error: {outcome}"
    return outcome.code


class Panic(BaseException):
    """As Rust code raises it."""


def test_a_request_loads_prefills_and_decodes(harness: Harness, script: Script) -> None:
    script.say("one ", "two")
    sequence = ask("abcdefghij")
    assert harness.run(sequence) == "one two"
    events = harness.events(sequence)
    assert events[0] == Progress("loading")
    assert events[1] == Prepared()
    assert events[2:4] == [Progress("prefill", 4, 10), Progress("prefill", 8, 10)]
    assert isinstance(events[4], Started)
    assert all(isinstance(event, Delta) for event in events[5:])
    status = harness.worker.status
    assert (status.state, status.model, status.num_running) == ("ready", "a", 0)


def test_what_comes_of_a_step_is_posted_at_once(pair: Harness, script: Script) -> None:
    for _ in range(2):
        script.say(*"abcdef")
    first, second = ask("one"), ask("two")
    script.gate.clear()
    pair.submit(first, second)
    script.gate.set()
    pair.finish(first)
    pair.finish(second)
    together = [post for post in pair.posts if len({s.uid for s, _ in post}) == 2]
    assert len(together) >= 4
    assert all(len(post) == 2 for post in together)
    assert [pair.finish(s) for s in (first, second)] == ["abcdef", "abcdef"]


def test_requests_that_come_together_with_one_new_prefix_read_it_once(
    script: Script, tmp_path: Path
) -> None:
    config = EngineConfig(prefill_step_size=16)
    script.say("fine")
    prefix = "agent " * 100
    sequences = [ask(f"{prefix}{task}") for task in ("count", "name", "draw", "say why")]
    with running_worker(tmp_path, max_num_seqs=8, config=config, a=script) as harness:
        harness.worker.submit(sequences)
        assert [harness.finish(sequence) for sequence in sequences] == ["fine"] * 4
        starts = [harness.wait_for_start(sequence) for sequence in sequences]
    assert [s.num_cached_tokens >= len(prefix) for s in starts] == [False, True, True, True]


def test_those_who_run_have_a_token_between_a_long_chunk_and_what_joins_after_it(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("prefill", "decode", "join"):
        note_calls(monkeypatch, name, calls)
    script.say(*"abcdefghijklmnop" * 20)
    script.say("fine")
    running, late = ask("one"), ask("y" * 65)
    config = EngineConfig(prefill_step_size=64)
    with running_worker(tmp_path, max_num_seqs=2, config=config, a=script) as harness:
        harness.submit(running)
        harness.wait_for_tokens(running, 3)
        calls.clear()
        script.prefill_s = 0.2
        harness.submit(late)
        harness.wait_for_start(late)
    join = calls.index("join")
    assert calls[join - 3 : join] == ["prefill", "decode", "prefill"]


def note_calls(monkeypatch: pytest.MonkeyPatch, name: str, calls: list[str]) -> None:
    method = getattr(Runner, name)

    def noted(*args: Any) -> Any:
        calls.append(name)
        return method(*args)

    monkeypatch.setattr(Runner, name, noted)


def test_requests_are_served_in_the_order_in_which_they_came(
    harness: Harness, script: Script
) -> None:
    for answer in ("one", "two", "three"):
        script.say(answer)
    sequences = [ask(text) for text in "xyz"]
    script.gate.clear()
    harness.submit(*sequences)
    script.gate.set()
    assert [harness.finish(s) for s in sequences] == ["one", "two", "three"]


def test_b115_a_running_answer_is_complete_before_the_next_model_is_loaded(
    harness: Harness, script: Script, other: Script
) -> None:
    script.say(*"aaaa")
    other.say(*"bbbb")
    script.say(*"cccc")
    sequences = [ask(), ask(model="b"), ask()]
    script.gate.clear()
    harness.submit(*sequences)
    script.gate.set()
    assert [harness.finish(s) for s in sequences] == ["aaaa", "bbbb", "cccc"]
    assert harness.loader.loads == ["a", "b"], "the third came before the turn of the first"
    names = [e.model for s in sequences for e in harness.events(s) if isinstance(e, Started)]
    assert names == ["a", "b", "a"]
    order = [(sequences.index(s), is_last(e)) for post in harness.posts for s, e in post]
    for before, after in ((0, 1), (2, 1)):
        tells = [place for place, (i, _) in enumerate(order) if i == after]
        begins = [p for p in tells if not isinstance(flat(harness)[p][1], Progress)]
        assert order.index((before, True)) < min(begins)


def flat(harness: Harness) -> list[tuple[object, object]]:
    return [pair for post in harness.posts for pair in post]


def test_a_model_that_cannot_be_loaded_fails_those_who_want_it_and_nobody_else(
    harness: Harness, script: Script, other: Script
) -> None:
    other.load_error = ValueError("broken")
    script.say("fine")
    script.say("fine too")
    doomed, also_doomed, fine = ask(model="b"), ask(model="b"), ask()
    script.gate.clear()
    harness.submit(ask(), doomed, fine, also_doomed)
    script.gate.set()
    assert harness.finish(fine) == "fine too"
    for sequence in (doomed, also_doomed):
        assert isinstance(harness.finish(sequence), ModelLoadFailed)
    other.load_error = None
    other.say("mended")
    assert harness.run(ask(model="b")) == "mended"


@pytest.mark.parametrize("at", ["prefill", "decode"])
def test_b125_a_failure_costs_its_own_request_and_no_queued_one(
    harness: Harness, script: Script, at: str
) -> None:
    script.say(*([] if at == "prefill" else ["a", "b"]), RuntimeError("boom"))
    script.say("fine")
    script.say("fine again")
    failing, queued = ask(), ask()
    script.gate.clear()
    harness.submit(failing, queued)
    script.gate.set()
    assert isinstance(harness.finish(failing), GenerationFailed)
    assert harness.finish(queued) == "fine"
    assert harness.run(ask()) == "fine again"
    assert harness.worker.status.is_alive


def test_b125_a_failure_ends_what_ran_beside_it_and_leaves_a_working_engine(
    pair: Harness, script: Script
) -> None:
    script.say(*["x"] * 50)
    script.say("y", RuntimeError("boom"))
    script.say("fine")
    first, second, queued = ask("one"), ask("two"), ask("three")
    pair.submit(first, second, queued)
    assert isinstance(pair.finish(first), GenerationFailed)
    assert isinstance(pair.finish(second), GenerationFailed)
    assert pair.finish(queued) == "fine"


def test_b125_a_failure_to_keep_the_state_of_an_answer_costs_nothing(
    harness: Harness, script: Script
) -> None:
    script.say("first")
    script.say("second")
    script.say("third")
    harness.run(ask())
    refuse_to_keep(harness)
    assert harness.run(ask()) == "second"
    assert harness.run(ask()) == "third"


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_b125_a_failure_to_keep_the_state_of_an_abandoned_request_costs_nothing(
    harness: Harness, script: Script, stage: str
) -> None:
    script.say("first")
    harness.run(ask())
    refuse_to_keep(harness)
    if stage == "decode":
        script.token_s = 0.005
        script.say(*["x"] * 1000)
    script.say("fine")
    abandoned = ask("y" * 4000 if stage == "prefill" else "y")
    harness.submit(abandoned)
    if stage == "decode":
        harness.wait_for_tokens(abandoned, 2)
    else:
        harness.wait_for(abandoned, lambda e: e == Progress("prefill", 8, 4000))
    harness.worker.abort(abandoned.request.request_id)
    assert harness.run(ask()) == "fine"
    assert harness.worker.status.is_alive


def test_b125_a_failure_to_keep_the_state_of_an_answer_out_of_time_is_told(
    harness: Harness, script: Script
) -> None:
    script.say("first")
    harness.run(ask())
    refuse_to_keep(harness)
    script.token_s = 0.005
    script.say(*["x"] * 1000)
    script.say("fine")
    late = ask()
    harness.submit(late)
    harness.wait_for_tokens(late, 2)
    late.deadline = 0.0
    assert isinstance(harness.finish(late), GenerationFailed)
    assert harness.run(ask()) == "fine"


@pytest.mark.parametrize("mark", OUT_OF_MEMORY_MARKS)
def test_b127_lack_of_memory_is_told_as_such_and_the_next_request_works(
    harness: Harness, script: Script, mark: str
) -> None:
    script.say("a", "b", RuntimeError(f"[METAL] Command buffer failed: {mark.title()} (00008)"))
    script.say("fine")
    failed = harness.run(ask())
    assert isinstance(failed, ModelUnavailable)
    assert code_of(failed) == "out_of_memory"
    assert harness.run(ask()) == "fine"


def test_what_a_client_is_told_of_a_failure_says_nothing_of_its_inside() -> None:
    secret = RuntimeError("boom at /Users/x: the prompt was 'hello'")
    assert "boom" not in failure_of(secret).message
    assert "hello" not in failure_of(secret).message


def test_a_prompt_that_is_refused_costs_nobody_anything(pair: Harness, script: Script) -> None:
    script.say(*"abcdef")
    running, refused = ask(), ask("x" * 10_000)
    pair.submit(running, refused)
    assert isinstance(pair.finish(refused), InvalidRequest)
    assert pair.finish(running) == "abcdef"
    assert pair.run(ask("hix")) is not None


def test_a_model_may_be_loaded_ahead_of_requests(harness: Harness, script: Script) -> None:
    harness.worker.load("a")
    wait_until(lambda: harness.worker.status.model == "a")
    script.say("fine")
    sequence = ask()
    assert harness.run(sequence) == "fine"
    assert "loading" not in harness.stages(sequence)
    harness.worker.load("b")
    assert harness.run(ask()) == "fine"
    assert harness.loader.loads == ["a"]


def test_a_load_ahead_that_fails_leaves_a_working_engine(
    harness: Harness, script: Script, other: Script
) -> None:
    other.load_error = ValueError("broken")
    harness.worker.load("b")
    script.say("fine")
    assert harness.run(ask()) == "fine"


def test_status_tells_of_a_load_under_way(harness: Harness, script: Script) -> None:
    assert harness.worker.status.state == "idle"
    script.load_s = 0.2
    harness.submit(ask())
    wait_until(lambda: harness.worker.status.state == "loading")
    assert harness.worker.status.loading == "a"
    wait_until(lambda: harness.worker.status.state == "ready")


def test_stopping_fails_what_runs_and_what_waits(harness: Harness, script: Script) -> None:
    script.token_s = 0.005
    script.say(*["x"] * 5000)
    running, waiting = ask(), ask()
    harness.submit(running, waiting)
    harness.wait_for_tokens(running, 2)
    harness.worker.stop()
    assert harness.worker.join(HANG_S)
    for sequence in (running, waiting):
        assert isinstance(harness.finish(sequence), EngineStopped)
    assert harness.worker.status.state == "stopped"
    assert harness.slot.model_id is None


def test_what_comes_after_the_end_is_refused(harness: Harness, script: Script) -> None:
    harness.worker.stop()
    assert harness.worker.join(HANG_S)
    with pytest.raises(EngineStopped):
        harness.submit(ask())


def test_what_comes_with_the_end_is_failed(harness: Harness, script: Script) -> None:
    script.say(*["x"] * 5000)
    script.token_s = 0.005
    running = ask()
    harness.submit(running)
    harness.wait_for_tokens(running, 1)
    harness.worker.stop()
    for _ in range(100):
        late = ask()
        try:
            harness.submit(late)
        except EngineStopped:
            break
        assert isinstance(harness.finish(late), EngineStopped)
    assert harness.worker.join(HANG_S)


def test_joining_a_busy_worker_gives_up_after_the_timeout(harness: Harness, script: Script) -> None:
    script.gate.clear()
    harness.submit(ask())
    wait_until(lambda: harness.worker.status.num_running == 1)
    harness.worker.stop()
    assert not harness.worker.join(0.05)
    script.gate.set()
    assert harness.worker.join(HANG_S)


def test_a_panic_in_the_first_load_is_told(script: Script, harness: Harness) -> None:
    script.load_error = Panic()
    harness.worker.load("a")
    wait_until(lambda: harness.worker.status.load_error is not None)
    script.load_error = None
    script.say("fine")
    assert harness.run(ask()) == "fine"
