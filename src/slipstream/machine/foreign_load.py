"""Measures how many of our cores other programs use: their CPU time between two readings, per second. Our cores are
those that this process may use.

The CPU time of other programs is the time in which our cores were not idle, less the CPU time of our own processes. It
includes the kernel's interrupts, and the time that the host of a virtual machine takes away (steal).

How exact the measurement is: Linux almost everywhere measures idle time exactly, but /proc/stat shows it in ticks of
10 ms. Each core has the two counters idle and iowait. The difference of two readings of a counter is off by about 4 ms,
independently of the other counters. On two cores this is 8 ms, which is 0.08 cores in 0.1 s and 0.02 cores in 0.5 s.
On a system whose timer does not stop on idle cores, idle time is counted by samples at the ticks. There two cores that
are half idle are off by 0.1 cores in 0.5 s. The CPU time of a running process is exact to nanoseconds. The CPU time of
its ended children is counted in ticks.

A container with a quota of q cores on n cores loses nothing while other programs use at most n - q cores. Only what
they use beyond that counts.

On a GPU, the share of the device that other processes use counts as the same share of our cores. The larger of the two
loads is returned."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from slipstream.machine.cgroups import read_limits
from slipstream.records import LoadSample

# In a shorter time, the error of the ticks reaches the load that counts as a disturbance (diagnose/foreign_load.py).
LEAST_S = 0.1
_SAMPLE_NS = 250_000_000  # a few steps of most scripts; the error of the ticks is small against this time
_PROCESS_CLOCK = (
    2  # the lower bits of the id of a process's CPU-time clock on Linux; the upper bits have the inverted pid
)


def process_cpu_s(pid: int) -> float:
    """Returns the CPU time of all threads of a process, including ended threads. Raises OSError if the process has
    ended."""
    return time.clock_gettime_ns((~pid << 3) | _PROCESS_CLOCK) / 1e9


class _Reading(NamedTuple):
    at_s: float
    idle_s: dict[int, float]  # idle time of each core that we may use
    own_s: float  # CPU time of our processes and of their ended children


class ForeignLoad:
    """Measures from `begin` to `end`. `end` also begins the next measurement."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        cores: Collection[int] | None = None,
        quota: float | None = None,
        nvml: Any | None = None,
        cpu_s: Callable[[int], float] = process_cpu_s,
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`cores` and `quota` are those of this process by default. Without `nvml` no GPU is read."""
        self._proc, self._nvml, self._cpu_s, self._now_s = proc, nvml, cpu_s, now_s
        if cores is None and hasattr(os, "sched_getaffinity"):
            cores, quota = os.sched_getaffinity(0), read_limits().cores
        self._cores = frozenset(cores or ())
        self.num_usable = min(float(len(self._cores)), quota or float("inf"))
        self._ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        self._before: _Reading | None = None
        self._before_us = 0  # microseconds since the epoch, as NVML counts
        self._own: set[int] = set()  # our processes in this measurement
        self._ever_own: set[int] = set()

    def begin(self, own: Iterable[int]) -> None:
        """Begins a measurement. `own` has the ids of this process and of our processes that may run until the end."""
        self._own = set(own)
        self._ever_own |= self._own
        self._before, self._before_us = self._read(), time.time_ns() // 1000

    def end(self, own: Iterable[int]) -> float | None:
        """Returns how many of our cores other programs used since the beginning. Returns None if the system does not
        report it, or if the time was too short. `own` may omit processes that have ended or were paused meanwhile."""
        before, before_us = self._before, self._before_us
        self.begin(self._own.union(own))
        after = self._before
        if before is None or after is None or before.idle_s.keys() != after.idle_s.keys():
            return None
        seconds = after.at_s - before.at_s
        if seconds < LEAST_S:
            return None
        idle_s = sum(after.idle_s.values()) - sum(before.idle_s.values())
        busy_s = seconds * len(after.idle_s) - idle_s - (after.own_s - before.own_s)
        foreign = busy_s / seconds - (len(self._cores) - self.num_usable)
        return max(0.0, foreign, self._share_of_gpu(before_us) * self.num_usable)

    def _read(self) -> _Reading | None:
        try:
            idle_s = self._idle_s((self._proc / "stat").read_text())
        except (OSError, ValueError, IndexError):
            return None
        at_s = self._now_s()
        return _Reading(at_s, idle_s, sum(map(self._own_s, self._own))) if idle_s else None

    def _idle_s(self, text: str) -> dict[int, float]:
        """Returns the idle time of each core, or {} if the system does not count it. Some sandboxes show only zeros."""
        found = {}
        for line in text.splitlines():
            if not line.startswith("cpu"):
                break
            name, *counters = line.split()
            if name[3:].isdigit() and int(name[3:]) in self._cores and any(word != "0" for word in counters):
                found[int(name[3:])] = (int(counters[3]) + int(counters[4])) / self._ticks
        return found

    def _own_s(self, pid: int) -> float:
        """Returns the CPU time of a process and of its ended children. So the sum over a tree of processes stays the
        same when a process ends and its parent waits for it."""
        try:
            with open(f"{self._proc}/{pid}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b")")[2].split()
            return self._cpu_s(pid) + (int(fields[13]) + int(fields[14])) / self._ticks
        except OSError:
            return 0.0

    def _share_of_gpu(self, since_us: int) -> float:
        """Returns the largest share of a GPU of ours that other processes used. A GPU on which none of our processes is
        listed does not count. Either we do not use it, or it lists other ids than those in this container."""
        if self._nvml is None:
            return 0.0
        share = 0.0
        with contextlib.suppress(Exception):  # a failing GPU is no reason to end a race
            for index in range(self._nvml.nvmlDeviceGetCount()):
                share = max(share, self._share_of(self._nvml.nvmlDeviceGetHandleByIndex(index), since_us))
        return share

    def _share_of(self, handle: Any, since_us: int) -> float:
        nvml: Any = self._nvml
        running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        if not running & self._ever_own:
            return 0.0
        shares = defaultdict[int, list[float]](list)
        with contextlib.suppress(Exception):  # NVML raises if there is no new sample
            for sample in nvml.nvmlDeviceGetProcessUtilization(handle, since_us):
                if sample.pid not in self._ever_own:
                    shares[sample.pid].append(sample.smUtil / 100)
        return min(1.0, sum(map(statistics.fmean, shares.values())))


class LoadSampler:
    """A sequence of measurements without gaps. `look` must be called often. It takes a sample when enough time has
    passed."""

    def __init__(self, load: ForeignLoad, own: Callable[[], Iterable[int]]) -> None:
        self.samples: list[LoadSample] = []
        self._load, self._own = load, own
        self._start_ns = time.perf_counter_ns()
        load.begin(own())

    def look(self) -> None:
        now_ns = time.perf_counter_ns()
        if now_ns - self._start_ns < _SAMPLE_NS:
            return
        cores = self._load.end(self._own())
        if cores is not None:
            self.samples.append(LoadSample(self._start_ns, now_ns, cores))
        self._start_ns = now_ns
