"""Stored KV state of all models: written behind the back of the MLX thread, read on it.

Whatever goes wrong with the disk is a miss or a record that is not kept; nothing raises.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from mlx_server.engine.kv_file import Record, dump, parse
from mlx_server.engine.kv_folder import KVFolder, select_states

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    record: Record
    last_use_ns: int


class DiskStore:
    """One thread may call it, whichever; another one writes while there is something to write.

    `max_queued_bytes` is what may wait for the disk in memory.
    """

    def __init__(self, folder: KVFolder, *, max_queued_bytes: int) -> None:
        self.folder = folder
        self._max_queued_bytes = max_queued_bytes
        self._queued: dict[str, _Job] = {}
        self._num_queued_bytes = 0
        self._writing: str | None = None
        self._unwanted: set[str] = set()
        self._changed = threading.Condition()
        self._is_writing = False
        self._has_warned = False

    def has(self, name: str) -> bool:
        with self._changed:
            if name in self._queued:
                return True
        return self.folder.has(name)

    def state_names(self, namespace: str) -> list[str]:
        """The states of one namespace, queued or written; those that another server has written
        lately may be missing.
        """
        with self._changed:
            queued = list(self._queued)
        return [*self.folder.state_names(namespace), *select_states(queued, namespace)]

    def read(self, name: str) -> Record | None:
        """None, and the file is removed, unless it is as it was written."""
        with self._changed:
            job = self._queued.get(name)
        if job is not None:
            return job.record
        data = self.folder.read(name)
        if data is None:
            return None
        try:
            record = parse(data)
            if record.name == name:
                return record
        except ValueError:
            pass
        logger.info("removed a damaged file of the prefix cache: %s", name)
        self.folder.remove(name)
        return None

    def put(self, record: Record, last_use_ns: int) -> bool:
        """Queue a record to be written, unless the queue is full; its arrays must never change."""
        with self._changed:
            if self._num_queued_bytes + record.num_bytes > self._max_queued_bytes:
                return False
            if record.name not in self._queued:
                self._queued[record.name] = _Job(record, last_use_ns)
                self._num_queued_bytes += record.num_bytes
            if not self._is_writing:
                self._is_writing = True
                threading.Thread(target=self._write_all, name="kv-writer", daemon=True).start()
            return True

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all that was put is written; False if that takes too long."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queued and self._is_writing), timeout_s)
            return not self._queued

    def remove(self, names: Iterable[str]) -> None:
        """Let go of records, written or not; waits for no writing."""
        for name in names:
            with self._changed:
                if name == self._writing:
                    self._unwanted.add(name)
                else:
                    self._take_out(name)
            self.folder.remove(name)

    def clear(self) -> None:
        """Let go of the records of all models, those of other servers as well."""
        with self._changed:
            queued = list(self._queued)
        self.folder.scan()
        self.remove([*queued, *self.folder.names()])

    def _write_all(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                self._write(job)
            except Exception:
                # the next one may fare better, and whoever waits for the queue must not hang
                logger.exception("a record of the prefix cache was not written")
            self._done(job)

    def _next_job(self) -> _Job | None:
        with self._changed:
            job = next(iter(self._queued.values()), None)
            self._is_writing = job is not None
            self._writing = job.record.name if job else None
            return job

    def _write(self, job: _Job) -> None:
        record = job.record
        if not self.folder.make_room(record.num_bytes, job.last_use_ns):
            return
        try:
            self.folder.write(record.name, dump(record), job.last_use_ns)
        except OSError as error:
            self._warn(error)
        else:
            self._has_warned = False

    def _warn(self, error: OSError) -> None:
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        logger.log(level, "the prefix cache cannot be written to disk: %s", error.strerror)

    def _done(self, job: _Job) -> None:
        name = job.record.name
        with self._changed:
            self._writing = None
            if name in self._unwanted:
                self._unwanted.discard(name)
                self.folder.remove(name)
            self._take_out(name)

    def _take_out(self, name: str) -> None:
        """Of the queue, with `_changed` held."""
        job = self._queued.pop(name, None)
        if job is not None:
            self._num_queued_bytes -= job.record.num_bytes
            self._changed.notify_all()
