"""How many trials fit in memory, with generated files and the simulated memory of `conftest.machine`."""

from __future__ import annotations

from pathlib import Path

from slipstream.machine import free_memory

GB = 1 << 30


def test_number_of_trials_that_fit() -> None:
    assert free_memory.num_fitting(10 * GB, 2 * GB) == 3
    assert free_memory.num_fitting(2 * GB, 2 * GB) == 0
    assert free_memory.num_fitting(GB, 0) > 1000  # uses none
    assert free_memory.num_on_device(8 * GB, 5 * GB) == 0 and free_memory.num_on_device(24 * GB, 5 * GB) == 2
    assert free_memory.num_on_device(0, 0) > 1000  # there is no device


def test_a_containers_limit_counts_without_its_caches(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n")
    (group / "memory.max").write_text(f"{GB}\n")
    (group / "memory.current").write_text(f"{GB * 3 // 4}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {GB // 4}\n")
    assert free_memory.free_bytes(tmp_path) == GB // 2
    assert free_memory.total_bytes(tmp_path) == GB
    (group / "memory.max").write_text("max\n")
    assert free_memory.free_bytes(tmp_path) == 8 * GB
    assert free_memory.total_bytes(tmp_path) == 16 * GB
