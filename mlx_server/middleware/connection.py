"""Below the app: a connection is given up when its client reads no more.

Without that, whatever waits to write to it would wait for ever. Slow readers are left alone.
"""

from __future__ import annotations

import asyncio
import logging

from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger(__name__)

STALL_S = 60.0


class Connection(H11Protocol):
    _num_unread = 0
    _check_due: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        # closing waits for the end of an answer that is still unread
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def _watch(self) -> None:
        self._stop_watching()
        self._num_unread = self.transport.get_write_buffer_size()
        if self._num_unread:
            self._check_due = self.loop.call_later(STALL_S, self._check)

    def _stop_watching(self) -> None:
        if self._check_due is not None:
            self._check_due.cancel()
            self._check_due = None

    def _check(self) -> None:
        # nothing is added meanwhile: writers wait until the client has read most of it
        if self.transport.get_write_buffer_size() < self._num_unread:
            self._watch()
        else:
            logger.info("a client has stopped reading: its connection is closed")
            self.transport.abort()
