"""Wakes the one task that waits for something to happen, or for the time to be up."""

from __future__ import annotations

import asyncio


class News:
    """An event with a time limit that costs little, since a stream waits for it at every token.

    A timer is left running when news comes; it looks at the latest deadline only when it is due.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_new = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        self._is_new = True
        self._wake()

    async def wait(self, deadline: float | None = None) -> None:
        """Until there is news since the last call, or until `deadline` in the loop's time."""
        if not self._is_new:
            self._deadline = deadline
            if deadline is not None:
                self._watch(deadline)
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_new = False

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self, deadline: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None or self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._watch(self._deadline)
        else:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
