"""Free memory is the least that the machine and the control groups around a process leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlx_server.engine.machine_memory import available_bytes

MEMINFO = "MemTotal:       100 kB\nMemFree:         20 kB\nMemAvailable:    80 kB\nHugepages:\n"
MACHINE = 80 * 1024


def write(root: Path, **files: str) -> Path:
    """Names have __ for the slash and _dot_ for the dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert available_bytes(write(tmp_path, proc__meminfo=MEMINFO)) == MACHINE


def test_a_machine_that_says_nothing_has_no_number(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    broken = write(tmp_path, proc__meminfo="MemAvailable: x kB", proc__self__cgroup="0:\nx")
    assert available_bytes(broken) is None


def test_a_group_of_the_second_version_leaves_its_limit_less_what_stays_used(
    tmp_path: Path,
) -> None:
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/service\n",
        sys__fs__cgroup__service__memory_dot_max="10000\n",
        sys__fs__cgroup__service__memory_dot_current="4000\n",
        sys__fs__cgroup__service__memory_dot_stat="anon 1000\ninactive_file 3000\n",
    )
    assert available_bytes(tmp_path) == 10000 - 1000


def test_groups_of_the_first_version_count_as_well_as_those_around_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="9:cpu:/\n4:memory:/outer/inner\n0::/\n",
        sys__fs__cgroup__memory__outer__memory_dot_limit_in_bytes="5000",
        sys__fs__cgroup__memory__outer__memory_dot_usage_in_bytes="2000",
        sys__fs__cgroup__memory__outer__inner__memory_dot_limit_in_bytes="9223372036854771712",
        sys__fs__cgroup__memory__outer__inner__memory_dot_usage_in_bytes="10",
    )
    assert available_bytes(tmp_path) == 3000


@pytest.mark.parametrize(("limit", "room"), [("max", MACHINE), ("700", 200), ("300", 0)])
def test_in_a_container_the_root_of_the_tree_counts_for_a_path_of_the_host(
    tmp_path: Path, limit: str, room: int
) -> None:
    write(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/docker/0123\n",
        sys__fs__cgroup__memory_dot_max=limit,
        sys__fs__cgroup__memory_dot_current="500",
    )
    assert available_bytes(tmp_path) == room
