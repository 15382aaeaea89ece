"""The wait of a stream: for news, or for the next sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mlx_server.api.news import News
from tests.patience import HANG_S

LONG_S = 3600.0
SHORT_S = 0.005


def go(main: Callable[[News], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG_S):
            news = News()
            await main(news)
            news.close()

    asyncio.run(bounded())


def in_s(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def started(waiting: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    return task


async def lasted(news: News, seconds: float) -> float:
    """How long a wait of so many seconds takes; more than 10 are a failure of their own."""
    began = in_s(0)
    await news.wait(began + seconds)
    return in_s(0) - began


async def interrupted(news: News, deadline: float) -> None:
    """A wait whose timer is left running."""
    waiting = await started(news.wait(deadline))
    news.tell()
    await waiting


def test_what_was_told_before_is_not_waited_for() -> None:
    async def main(news: News) -> None:
        news.tell()
        assert (await started(news.wait())).done()

    go(main)


def test_news_is_told_once() -> None:
    async def main(news: News) -> None:
        news.tell()
        news.tell()
        await news.wait()
        task = await started(news.wait())
        assert not task.done()
        news.tell()
        await task

    go(main)


def test_a_wait_ends_at_its_deadline() -> None:
    async def main(news: News) -> None:
        assert await lasted(news, SHORT_S) >= SHORT_S

    go(main)


def test_a_deadline_that_is_over_ends_the_wait() -> None:
    async def main(news: News) -> None:
        assert await lasted(news, -1) < LONG_S

    go(main)


def test_a_later_deadline_counts_although_the_timer_of_the_earlier_one_runs() -> None:
    async def main(news: News) -> None:
        await interrupted(news, in_s(SHORT_S))
        assert await lasted(news, 4 * SHORT_S) >= 4 * SHORT_S

    go(main)


def test_an_earlier_deadline_counts_although_the_timer_of_a_later_one_runs() -> None:
    async def main(news: News) -> None:
        await interrupted(news, in_s(LONG_S))
        assert SHORT_S <= await lasted(news, SHORT_S) < LONG_S

    go(main)


def test_a_timer_does_not_end_a_wait_that_has_no_deadline() -> None:
    async def main(news: News) -> None:
        await interrupted(news, in_s(SHORT_S))
        waiting = await started(news.wait())
        await asyncio.sleep(4 * SHORT_S)
        assert not waiting.done()
        news.tell()
        await waiting

    go(main)


def test_a_wait_that_was_given_up_loses_no_news() -> None:
    async def main(news: News) -> None:
        waiting = await started(news.wait())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        news.tell()
        await news.wait()

    go(main)
