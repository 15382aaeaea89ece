"""The limits of memory are the device's own, or lower where the user says so."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlx_server.engine import device

GIB = 1 << 30
METAL = {"max_recommended_working_set_size": 24 * GIB, "memory_size": 32 * GIB}


class Limits:
    """Takes the place of MLX's setters, which give back the limit before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], is_cpu: bool) -> None:
        self.memory, self.cache, self.wired = 36 * GIB, 36 * GIB, 0
        monkeypatch.setattr(mx, "device_info", lambda: info)
        monkeypatch.setattr(device, "is_cpu", lambda: is_cpu)
        for name in ("memory", "cache", "wired"):
            monkeypatch.setattr(mx, f"set_{name}_limit", lambda limit, n=name: self.swap(n, limit))

    def swap(self, name: str, limit: int) -> int:
        before: int = getattr(self, name)
        setattr(self, name, limit)
        return before


def test_metal_has_what_it_recommends_and_keeps_weights_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = Limits(monkeypatch, METAL, is_cpu=False)
    assert device.default_memory_limit() == 24 * GIB
    device.limit_memory(24 * GIB)
    assert (limits.memory, limits.cache, limits.wired) == (24 * GIB, 3 * GIB, 24 * GIB)


@pytest.mark.parametrize(("limit", "wired"), [(8 * GIB, 8 * GIB), (30 * GIB, 24 * GIB)])
def test_b128_a_limit_of_the_user_bounds_everything_and_wires_no_more_than_allowed(
    monkeypatch: pytest.MonkeyPatch, limit: int, wired: int
) -> None:
    limits = Limits(monkeypatch, METAL, is_cpu=False)
    device.limit_memory(limit)
    assert (limits.memory, limits.cache, limits.wired) == (limit, limit // 8, wired)


def test_a_smaller_cache_of_buffers_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, METAL, is_cpu=False)
    limits.cache = 1000
    device.limit_memory(8 * GIB)
    assert limits.cache == 1000


def test_a_device_without_a_recommendation_wires_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(monkeypatch, {"memory_size": 10 * GIB}, is_cpu=False)
    assert device.default_memory_limit() == 9 * GIB
    device.limit_memory(9 * GIB)
    assert (limits.memory, limits.wired) == (9 * GIB, 0)


def test_a_cpu_has_most_of_what_is_free_and_needs_no_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = Limits(monkeypatch, {"device_name": "x"}, is_cpu=True)
    monkeypatch.setattr(device, "available_bytes", lambda: 10 * GIB)
    assert device.default_memory_limit() == 9 * GIB
    device.limit_memory(9 * GIB)
    assert (limits.memory, limits.cache, limits.wired) == (36 * GIB, 36 * GIB, 0)
    monkeypatch.setattr(device, "available_bytes", lambda: None)
    assert device.default_memory_limit() > 0


def test_scores_of_attention_are_kept_where_no_kernel_fuses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not device.has_fused_attention(128)
    monkeypatch.setattr(device, "is_cpu", lambda: False)
    assert device.has_fused_attention(128)
    assert not device.has_fused_attention(256)


def test_a_cpu_widens_weights_unless_told_to_leave_them() -> None:
    sizes = [device.cpu_float_bytes(d) for d in ("float32", "bfloat16", "float16", "checkpoint")]
    assert sizes == [4, 2, 2, None]
