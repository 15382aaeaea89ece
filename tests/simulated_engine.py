"""An engine without a model: a scheduler, a clock that costs nothing, and steps of known length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from mlx_server.engine.scheduler import Scheduler
from mlx_server.engine.sequence import GenerationRequest, RawPrompt, Sequence
from mlx_server.engine.steps import DecodeStep, LoadStep, PrefillStep, PrepareStep, Step


@dataclass
class FakeWorkload:
    """`left` are prompt tokens per uid, `shared` pairs of (later, earlier) uids; `needed` are the
    tokens per uid that take memory, of which there is `room` for so many at a time.
    """

    left: dict[int, int] = field(default_factory=dict)
    shared: set[tuple[int, int]] = field(default_factory=set)
    too_big: set[int] = field(default_factory=set)
    needed: dict[int, int] = field(default_factory=dict)
    room: int = 1 << 62
    held: set[int] = field(default_factory=set)

    def num_left(self, sequence: Sequence) -> int:
        return self.left.get(sequence.uid, 1)

    def is_shared(self, sequence: Sequence, earlier: Sequence) -> bool:
        return (sequence.uid, earlier.uid) in self.shared

    def reserve(self, sequence: Sequence) -> bool:
        taken = sum(self.needed.get(uid, 0) for uid in (*self.held, sequence.uid))
        is_promised = sequence.uid not in self.too_big and taken <= self.room
        if is_promised:
            self.held.add(sequence.uid)
        return is_promised

    def release(self, sequence: Sequence) -> None:
        self.held.discard(sequence.uid)


@dataclass(frozen=True)
class Arrival:
    """`after_s` counts from the arrival before it."""

    after_s: float
    model: str
    num_prompt_tokens: int = 50
    num_new_tokens: int = 16


@dataclass
class _Open:
    sequence: Sequence
    num_new_tokens: int
    client: int | None
    last_token_at: float | None = None
    num_tokens: int = 0


class SimulatedEngine:
    """Runs arrivals to the end and keeps a log of loads, admissions and gaps between tokens."""

    decode_s = 0.02
    prefill_s_per_token = 0.001
    chunk = 128

    def __init__(self, *, max_num_seqs: int, load_s: float, loaded: str | None = None) -> None:
        self.workload = FakeWorkload()
        self.scheduler = Scheduler(self.workload, max_num_seqs=max_num_seqs)
        self.now = 0.0
        self.loaded = loaded
        self.load_s = load_s
        self.loads: list[tuple[float, str]] = []
        self.arrived: dict[int, tuple[float, str]] = {}
        self.began: dict[int, float] = {}
        self.served: list[int] = []
        self.longest_stall_s = 0.0
        self.longest_burst_stall_s = 0.0
        self._open: dict[int, _Open] = {}
        self._clients: list[list[str]] = []

    @property
    def num_loads(self) -> int:
        return len(self.loads)

    def run(self, arrivals: Seq[Arrival]) -> None:
        due: list[tuple[float, Arrival]] = []
        at = 0.0
        for arrival in arrivals:
            at += arrival.after_s
            due.append((at, arrival))
        while due or self.scheduler.has_work:
            if not self.scheduler.has_work:
                self.now = max(self.now, due[0][0])
            while due and due[0][0] <= self.now:
                self._arrive(due.pop(0)[1], None)
            self._step()

    def run_clients(self, clients: list[list[str]]) -> None:
        """Each client asks for its next model when it has the answer of the one before."""
        self._clients = [list(models) for models in clients]
        for client in range(len(clients)):
            self._ask_next(client)
        while self.scheduler.has_work:
            self._step()

    def num_turns_while_waiting(self, uid: int) -> dict[str, int]:
        """How often each other model was loaded between the arrival of `uid` and its beginning."""
        arrived, model = self.arrived[uid]
        turns = Counter(m for t, m in self.loads if arrived < t <= self.began[uid])
        del turns[model]
        return turns

    def _ask_next(self, client: int) -> None:
        if self._clients[client]:
            self._arrive(Arrival(0.0, self._clients[client].pop(0)), client)

    def _arrive(self, arrival: Arrival, client: int | None) -> None:
        uid = len(self.arrived)
        request = GenerationRequest(f"r{uid}", arrival.model, RawPrompt("x"))
        sequence = Sequence(uid, request, 0, arrival.model, seed=0, deadline=0.0)
        self.workload.left[uid] = arrival.num_prompt_tokens
        self.workload.needed[uid] = arrival.num_prompt_tokens + arrival.num_new_tokens
        self.arrived[uid] = (self.now, arrival.model)
        self._open[uid] = _Open(sequence, arrival.num_new_tokens, client)
        self.scheduler.add(sequence, self.now)

    def _step(self) -> None:
        step = self.scheduler.next_step(self.loaded, self.now)
        assert step is not None, "whoever waits must be served"
        began, num_tokens = self.now, self._run(step)
        self.scheduler.ran(step, self.now - began, num_tokens)

    def _run(self, step: Step) -> int:
        if isinstance(step, LoadStep):
            self.now += self.load_s
            self.loaded = step.model
            self.loads.append((self.now, step.model))
        elif isinstance(step, PrepareStep):
            step.sequence.prompt = "ready"
        elif isinstance(step, PrefillStep):
            return self._prefill(step)
        else:
            assert step == DecodeStep()
            self._decode()
        return 0

    def _prefill(self, step: PrefillStep) -> int:
        uid = step.sequence.uid
        self.began.setdefault(uid, self.now)
        num_tokens = min(self.workload.left[uid], self.chunk, step.max_tokens or self.chunk)
        self.now += num_tokens * self.prefill_s_per_token
        self.workload.left[uid] -= num_tokens
        if self.workload.left[uid] == 0:
            self.scheduler.prefilled(step.sequence)
            self._open[uid].last_token_at = self.now
        return num_tokens

    def _decode(self) -> None:
        self.now += self.decode_s
        for sequence in list(self.scheduler.running):
            one = self._open[sequence.uid]
            assert one.last_token_at is not None
            stall = self.now - one.last_token_at
            # the first token came with the end of the prompt
            if one.num_tokens == 0:
                self.longest_burst_stall_s = max(self.longest_burst_stall_s, stall)
            else:
                self.longest_stall_s = max(self.longest_stall_s, stall)
            one.last_token_at = self.now
            one.num_tokens += 1
            if one.num_tokens == one.num_new_tokens:
                self._end(one)

    def _end(self, one: _Open) -> None:
        self.scheduler.finish(one.sequence)
        self.workload.release(one.sequence)
        self.served.append(one.sequence.uid)
        if one.client is not None:
            self._ask_next(one.client)
