import os
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from slipstream.machine.cgroups import CgroupLimits
from slipstream.machine.environment import count_usable, read_cpu_name, read_environment, read_idle_file_s
from slipstream.records import Environment


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads the real host, and asserts only what holds on every machine."""
    monkeypatch.undo()
    environment = read_environment(tmp_path)
    assert environment.cpu
    assert 0 < environment.num_usable <= environment.num_logical == psutil.cpu_count()
    assert environment.memory_bytes == psutil.virtual_memory().total
    assert environment.disk_kind in ("ssd", "hdd", "network", "memory", "unknown")
    assert (environment.shm_bytes is None) == (not Path("/dev/shm").is_dir())
    assert msgspec.json.decode(msgspec.json.encode(environment), type=Environment) == environment


@pytest.mark.parametrize("num_cores", [1, 2, 64])
def test_cores_memory_and_affinity_come_from_the_system(num_cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: num_cores)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: list(range(num_cores)), raising=False)
    environment = read_environment(".")
    assert (environment.num_cores, environment.num_logical, environment.num_usable) == (num_cores, num_cores, num_cores)
    assert environment.memory_bytes == 16 << 30
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [num_cores - 1], raising=False)
    assert read_environment(".").num_usable == 1.0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_process_that_is_bound_to_one_core_has_one() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from slipstream.machine.environment import read_environment; assert read_environment('.').num_usable <= 1.0"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_strictest_limit_wins() -> None:
    assert count_usable(16, 8, CgroupLimits(cores=2.5)) == 2.5
    assert count_usable(16, 2, CgroupLimits(cores=4.0)) == 2.0
    assert count_usable(16, None, CgroupLimits()) == 16.0


def test_a_machine_without_any_files(tmp_path: Path) -> None:
    environment = read_environment(tmp_path, root=tmp_path)
    assert environment.shm_bytes is None
    assert environment.memory_limit_bytes is None
    assert environment.disk_kind == "unknown"
    assert environment.cpu


def test_limit_above_the_memory_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/self/mountinfo").write_text("35 25 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(str(32 << 30))
    assert read_environment(tmp_path, root=tmp_path).memory_limit_bytes is None
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1048576")
    assert read_environment(tmp_path, root=tmp_path).memory_limit_bytes == 1 << 20


def test_the_name_of_the_processor(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: A   Fine(R) CPU\n")
    assert read_cpu_name(tmp_path) == "A Fine(R) CPU"


def test_the_parent_needs_no_torch() -> None:
    code = "import sys; from slipstream.machine.environment import read_environment; read_environment('.'); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


def lay(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


def scheme(state: str = "on", action: str = "pageout") -> dict[str, str]:
    context = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0"
    return {
        "sys/kernel/mm/damon/admin/kdamonds/0/state": state,
        f"{context}/monitoring_attrs/intervals/aggr_us": "5000000",
        f"{context}/schemes/0/action": action,
        f"{context}/schemes/0/access_pattern/age/min": "12",
    }


def test_pageout_scheme_with_an_age_of_a_minute(tmp_path: Path) -> None:
    lay(tmp_path, scheme())
    assert read_idle_file_s(tmp_path) == 60.0


def without(name: str) -> dict[str, str]:
    return {path: text for path, text in scheme().items() if not path.endswith(name)}


@pytest.mark.parametrize("files", [{}, scheme(state="off"), scheme(action="stat"), without("aggr_us"), without("min")])
def test_schemes_that_drop_nothing_or_cannot_be_read(tmp_path: Path, files: dict[str, str]) -> None:
    lay(tmp_path, files)
    assert read_idle_file_s(tmp_path) is None


def test_damon_reclaim_module(tmp_path: Path) -> None:
    parameters = "sys/module/damon_reclaim/parameters"
    lay(tmp_path, {f"{parameters}/enabled": "Y", f"{parameters}/min_age": "120000000"})
    assert read_idle_file_s(tmp_path) == 120.0
