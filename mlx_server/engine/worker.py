"""The MLX thread: takes commands, asks the scheduler for a step, runs it and posts what came of it.

Everything that touches a model happens here, and only plain Python values leave.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from mlx_server.checkpoint_files import weight_bytes
from mlx_server.engine.device import prepare_device
from mlx_server.engine.prompt_tokens import prompt_tokens
from mlx_server.engine.runner import Answer, Runner
from mlx_server.engine.scheduler import Scheduler
from mlx_server.engine.sequence import GenerationEvent, Prepared, Progress, Sequence
from mlx_server.engine.slot import ModelSlot
from mlx_server.engine.status import EngineStatus, PrefixCacheStats
from mlx_server.engine.steps import LoadStep, PrefillStep, PrepareStep, Step
from mlx_server.errors import (
    EngineStopped,
    GenerationFailed,
    ModelLoadFailed,
    ModelUnavailable,
    ServerError,
)

logger = logging.getLogger(__name__)

Command = Callable[[], None]
Post = Callable[[list[tuple[Sequence, GenerationEvent | ServerError]]], None]
"""Hands the outcome of one step to the event loop: one call, whatever the number of rows."""

OUT_OF_MEMORY_MARKS = (
    "insufficient memory",
    "out of memory",
    "[metal::malloc]",
    "unable to allocate",
)


class Worker:
    """`locate` gives the checkpoint folder of a catalog id, from this machine alone."""

    def __init__(
        self,
        slot: ModelSlot,
        scheduler: Scheduler,
        *,
        locate: Callable[[str], Path],
        post: Post,
    ) -> None:
        self._slot = slot
        self._scheduler = scheduler
        self._locate = locate
        self._post = post
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._outbox: list[tuple[Sequence, GenerationEvent | ServerError]] = []
        self._is_stopping = False
        self._loading: str | None = None
        self._load_error: str | None = None
        self._num_bytes_to_load = 0
        self._thread = threading.Thread(target=self._run, name="mlx", daemon=True)
        self.status = EngineStatus()

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequences: list[Sequence]) -> None:
        """Raises EngineStopped if the thread has ended."""
        self._commands.put(lambda: self._add(sequences))
        if not self.status.is_alive:
            raise EngineStopped

    def abort(self, request_id: str) -> None:
        self._commands.put(lambda: self._abort(request_id))

    def load(self, model: str) -> None:
        """Have `model` in the slot before anybody asks for it; to be called before `start`."""
        self.status = replace(self.status, loading=model)
        self._commands.put(lambda: self._preload(model))

    def clear_prefix_cache(self) -> Future[PrefixCacheStats]:
        """Forget all kept KV state between two steps, and tell its numbers before.

        Raises EngineStopped if the thread has ended.
        """
        before: Future[PrefixCacheStats] = Future()
        self._commands.put(lambda: self._clear_prefix_cache(before))
        if not self.status.is_alive:
            raise EngineStopped
        return before

    def stop(self) -> None:
        """Fail what is left and end the thread after the step under way."""
        self._commands.put(self._stop)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread, if it ever began; False if it is still busy."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        prepare_device()
        try:
            while not self._is_stopping:
                self._turn()
        finally:
            self._end()

    def _turn(self) -> None:
        """Whatever a model raises ends here, in an error for those whom it concerns."""
        step = None
        try:
            self._take_commands()
            if self._is_stopping:
                return
            self._expire()
            step = self._scheduler.next_step(self._slot.model_id, time.monotonic())
            self._flush()
            if step is not None:
                self._run_step(step)
        except BaseException as error:
            # a panic in Rust code, as of a tokenizer, is no Exception
            logger.exception("a step of the engine failed")
            failure = failure_of(error)
            # the traceback holds arrays of the failed step
            error.__traceback__ = None
            self._recover(step, failure)
        self._flush()

    def _end(self) -> None:
        self._is_stopping = True
        # from here on `submit` refuses; what it has let in before is failed with the others
        self._flush(is_alive=False)
        while not self._commands.empty():
            self._commands.get()()
        try:
            self._fail(self._scheduler.sequences(), EngineStopped())
        except Exception:
            logger.exception("the state of the last sequences is lost")
        self._flush(is_alive=False)
        # last, since what was cut off leaves KV state that is written to disk
        self._slot.unload()
        mx.clear_streams()

    def _take_commands(self) -> None:
        """Carry out what has come in; without other work, wait for something to come."""
        if not self._scheduler.has_work and not self._is_stopping:
            self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()

    def _run_step(self, step: Step) -> None:
        began = time.monotonic()
        num_tokens, prefill_s = 0, 0.0
        try:
            if isinstance(step, LoadStep):
                self._load(step.model)
            elif isinstance(step, PrepareStep):
                self._prepare(step.sequence)
            elif isinstance(step, PrefillStep):
                num_tokens, prefill_s = self._prefill(step)
            else:
                self._decode()
        except ServerError as error:
            logger.info("refused: %s", error.message)
            self._fail(self._concerned(step), error)
        self._scheduler.ran(step, time.monotonic() - began, num_tokens, prefill_s)

    def _recover(self, step: Step | None, failure: ServerError) -> None:
        """No KV state outlives a failure on the device, so all that had some goes with it."""
        concerned = self._concerned(step) if step is not None else []
        if isinstance(step, PrepareStep):
            self._fail(concerned, failure)
            return
        self._reset_runner()
        with_state = [*self._scheduler.running, *self._scheduler.prefilling]
        self._fail([*concerned, *(s for s in with_state if s not in concerned)], failure)

    def _reset_runner(self) -> None:
        if self._slot.runner is not None:
            self._slot.runner.reset()

    def _concerned(self, step: Step) -> list[Sequence]:
        if isinstance(step, LoadStep):
            return self._scheduler.waiting_for(step.model)
        if isinstance(step, PrepareStep):
            return self._siblings(step.sequence)
        if isinstance(step, PrefillStep):
            return [step.sequence, *self._siblings(step.sequence)]
        return list(self._scheduler.running)

    def _load(self, model: str) -> None:
        self._loading = model
        for sequence in self._scheduler.waiting_for(model):
            self._emit(sequence, Progress("loading"))
        self._load_error = None
        try:
            path = self._locate(model)
            self._num_bytes_to_load = weight_bytes(path)
            self._flush()
            self._slot.swap(model, path)
        except ServerError as error:
            self._load_error = error.message
            raise
        except OSError as error:
            self._load_error = "The model's checkpoint is not on this machine any more."
            raise ModelLoadFailed(self._load_error) from error
        except BaseException:
            # whoever waits for the first model learns of nothing but this
            self._load_error = "The model could not be loaded; the log has the cause."
            raise
        finally:
            self._loading = None

    def _prepare(self, sequence: Sequence) -> None:
        assert self._slot.runner is not None
        if sequence.request.only_prepare is not None:
            self._emit(sequence, prompt_tokens(self._slot.runner.loaded, sequence))
            self._scheduler.finish(sequence)
            return
        self._slot.runner.prepare(sequence)
        for sibling in self._siblings(sequence):
            sibling.prompt = sequence.prompt
            sibling.images = ()
        self._emit(sequence, Prepared())

    def _siblings(self, sequence: Sequence) -> list[Sequence]:
        """The waiting sequences of the same request, which have the same prompt."""
        return [s for s in self._scheduler.waiting if s.request is sequence.request]

    def _prefill(self, step: PrefillStep) -> tuple[int, float]:
        """Returns the number of prompt tokens that ran, and the seconds that they took."""
        assert self._slot.runner is not None
        sequence = step.sequence
        began = time.monotonic()
        try:
            result = self._slot.runner.prefill(sequence, step.max_tokens)
        except ServerError:
            raise
        except Exception as error:
            logger.exception("a prefill failed")
            error.__traceback__ = None
            self._slot.runner.forget(sequence)
            raise failure_of(error) from None
        prefill_s = time.monotonic() - began
        if isinstance(result.event, Progress):
            self._emit(sequence, result.event)
        elif self._scheduler.may_join(prefill_s):
            self._emit(sequence, result.event)
            self._scheduler.prefilled(sequence)
            self._answer(self._slot.runner, [self._slot.runner.join(sequence)])
        return result.num_tokens, prefill_s

    def _decode(self) -> None:
        assert self._slot.runner is not None
        self._answer(self._slot.runner, self._slot.runner.decode())

    def _answer(self, runner: Runner, answers: list[Answer]) -> None:
        for sequence, event in answers:
            if isinstance(event, ServerError) or event.finish_reason is not None:
                self._scheduler.finish(sequence)
            self._emit(sequence, event)
        # nobody's last token waits while the state behind it is put away
        self._flush()
        runner.settle()

    def _expire(self) -> None:
        """Cut the answers, and refuse the prompts, whose time is up."""
        now = time.monotonic()
        for sequence in [s for s in self._scheduler.sequences() if s.deadline <= now]:
            runner = self._slot.runner
            if runner is not None and runner.can_cut(sequence):
                self._emit(sequence, runner.cut(sequence))
                self._scheduler.finish(sequence)
            else:
                self._fail([sequence], ModelUnavailable("The request's time was up before it ran."))

    def _add(self, sequences: list[Sequence]) -> None:
        now = time.monotonic()
        for sequence in sequences:
            self._scheduler.add(sequence, now)

    def _abort(self, request_id: str) -> None:
        self._drop([s for s in self._scheduler.sequences() if s.request.request_id == request_id])

    def _drop(self, sequences: list[Sequence]) -> None:
        # first of all, so that none of them runs for nobody if putting one away fails
        for sequence in sequences:
            self._scheduler.finish(sequence)
        for sequence in sequences:
            if self._slot.runner is not None:
                self._slot.runner.drop(sequence)

    def _preload(self, model: str) -> None:
        if self._scheduler.has_work or self._slot.model_id is not None or self._is_stopping:
            return
        self._run_step(LoadStep(model))

    def _clear_prefix_cache(self, before: Future[PrefixCacheStats]) -> None:
        if before.set_running_or_notify_cancel():
            stats = self._prefix_cache_stats()
            self._slot.clear_prefix_cache()
            before.set_result(stats)

    def _prefix_cache_stats(self) -> PrefixCacheStats:
        runner = self._slot.runner
        return PrefixCacheStats() if runner is None else runner.prefix_cache.stats()

    def _stop(self) -> None:
        self._is_stopping = True

    def _fail(self, sequences: list[Sequence], error: ServerError) -> None:
        for sequence in sequences:
            self._emit(sequence, error)
        self._drop(sequences)

    def _emit(self, sequence: Sequence, event: GenerationEvent | ServerError) -> None:
        self._outbox.append((sequence, event))

    def _flush(self, *, is_alive: bool = True) -> None:
        self.status = EngineStatus(
            is_alive=is_alive,
            model=self._slot.model_id if self._loading is None else None,
            loading=self._loading,
            load_error=self._load_error,
            num_bytes_to_load=self._num_bytes_to_load,
            num_running=self._scheduler.num_running,
            prefix_cache=self._prefix_cache_stats(),
        )
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._post(outbox)


def failure_of(error: BaseException) -> ServerError:
    """What a client is told of an exception of the model; its text stays in the log."""
    if any(mark in str(error).lower() for mark in OUT_OF_MEMORY_MARKS):
        return ModelUnavailable(
            "The device ran out of memory. Send a shorter prompt or try again later.",
            code="out_of_memory",
        )
    return GenerationFailed("The model failed while it was running. Send the request again.")
