"""The numbers of the prefix cache, and its emptying."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_server.engine.status import EngineStatus, PrefixCacheStats
from tests.asgi_client import call, make_app
from tests.fake_engine import FakeEngine

STATS = PrefixCacheStats(
    num_entries=1,
    num_bytes=2,
    max_bytes=3,
    num_disk_entries=4,
    num_disk_bytes=5,
    max_disk_bytes=6,
    num_lookups=7,
    num_hits=8,
    num_tokens_asked=9,
    num_tokens_cached=10,
)
ON_THE_WIRE: dict[str, Any] = {
    "object": "cache",
    "ram": {"num_entries": 1, "num_bytes": 2, "max_bytes": 3},
    "disk": {"num_entries": 4, "num_bytes": 5, "max_bytes": 6},
    "num_lookups": 7,
    "num_hits": 8,
    "num_tokens_asked": 9,
    "num_tokens_cached": 10,
}


@pytest.mark.parametrize("path", ["/v1/cache", "/cache"])
def test_both_tiers_and_the_hits_are_told(path: str) -> None:
    answer = call(make_app(FakeEngine(status_now=EngineStatus(prefix_cache=STATS))), path)

    assert answer.status == 200
    assert answer.json == ON_THE_WIRE


@pytest.mark.parametrize("path", ["/v1/cache", "/cache"])
def test_clearing_tells_the_numbers_before(path: str) -> None:
    answer = call(make_app(FakeEngine(cache_before=STATS)), path, method="DELETE")

    assert answer.status == 200
    assert answer.json == {**ON_THE_WIRE, "deleted": True}


def test_clearing_that_has_to_wait_is_a_202_with_the_last_numbers() -> None:
    engine = FakeEngine(status_now=EngineStatus(prefix_cache=STATS), cache_before=None)

    answer = call(make_app(engine), "/v1/cache", method="DELETE")

    assert answer.status == 202
    assert answer.json == {**ON_THE_WIRE, "deleted": False}
