"""Compares the readings of a speed test with the usual ranges for the hardware, and explains slow readings.

The ranges are wide on purpose. A reading that is slower than its range has a cause that is worth looking for. A reading
inside its range does not show that the machine is fast.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from slipstream.numbers import in_bytes, plural
from slipstream.records import Environment, Judgement, Reading, SpeedTest

BUSY = (
    "The machine was busy when the test began (a load of {load:.1f} on {cores:g} cores): every reading may be too low."
)
_DISKS = {
    "ssd": (400.0, 8000.0, "SATA SSDs read 500 MB/s, NVMe drives several thousand"),
    "hdd": (80.0, 300.0, "the rotation of a spinning disk limits its speed"),
    "network": (80.0, 3000.0, "a gigabit line carries 120 MB/s, ten of them 1,200"),
}
_ANY_DISK = (80.0, 8000.0, "the range of all disks; the kind of this one is unknown")
_SMALL_FILES = {"ssd": 1000.0, "hdd": 50.0, "network": 100.0}
# GFLOP/s of one core in fp32. The peak is vector width x 2 (multiply, add) x units x clock; about half is reached.
_PER_CORE = {"AVX2": (20.0, 150.0), "AVX512": (30.0, 300.0)}
_ANY_CORE = (4.0, 150.0)


class UsualRange(msgspec.Struct, frozen=True):
    low: float | None
    high: float | None
    because: str
    remark: str  # The text for a reading that is slower than the range


def judge_machine(test: SpeedTest) -> list[Judgement]:
    """One judgement for each reading, in the order of measurement."""
    return [_judge(reading, test) for reading in test.readings]


def general_remarks(test: SpeedTest) -> Iterator[str]:
    """Remarks that belong to no single reading."""
    environment = test.environment
    if is_busy(environment):
        yield BUSY.format(load=environment.load, cores=environment.num_usable)
    if environment.num_usable < environment.num_logical:
        logical = plural(environment.num_logical, "core")
        yield f"Only {environment.num_usable:g} of {logical} may be used here: workers and threads beyond that wait."
    if environment.shm_bytes is not None and environment.shm_bytes < 1 << 29:
        room = in_bytes(environment.shm_bytes)
        yield f"/dev/shm has {room}: loader workers hand batches over there. In Docker: --shm-size=8g."
    if environment.idle_file_s is not None:
        yield (
            f"The system drops files from memory that were not used for {environment.idle_file_s:.0f} s (DAMON), "
            "however much is free: data whose epoch takes longer may come from the disk in every epoch."
        )


def is_busy(environment: Environment) -> bool:
    return environment.load > max(1.0, environment.num_usable)


def _judge(reading: Reading, test: SpeedTest) -> Judgement:
    if reading.name.startswith("multiply_") and reading.name != "multiply_fp32":
        return _judge_precision(reading, test)
    usual = usual_of(reading, test)
    if usual is None:
        return Judgement(reading, None, None, "")
    is_time = reading.unit == "ms"
    bound = usual.high if is_time else usual.low
    is_worse = bound is not None and (reading.value > bound if is_time else reading.value < bound)
    return Judgement(reading, usual.low, usual.high, usual.because, usual.remark if is_worse else "")


def usual_of(reading: Reading, test: SpeedTest) -> UsualRange | None:
    environment = test.environment
    if reading.device != "cpu":
        return _of_device(reading)
    table = {
        "disk_cold": _disk(environment),
        "disk_warm": UsualRange(1500.0, None, "a copy out of the page cache", _WARM),
        "disk_files": _small_files(environment),
        "decode": UsualRange(200.0, 1500.0, "libjpeg-turbo decodes such a photograph in 1 to 3 ms", _DECODE),
        "decode_scaling": _scaling(environment),
        "memory_copy": UsualRange(3.0, 40.0, "one core reaches a part of the memory's bandwidth", _MEMORY),
        "multiply_fp32": _multiply(environment, test.cpu_capability),
        "process_start": UsualRange(None, 150.0, "Python alone", _PROCESS),
        "import_torch": UsualRange(None, 8000.0, "a few hundred libraries, warm or cold", _IMPORT),
        "worker_start": UsualRange(None, 500.0, "a fork, and the first batch back", _WORKER),
        "hand_over": UsualRange(
            400.0, None, "one copy into shared memory, and pages that are new each time", _HAND_OVER
        ),
    }
    return table.get(reading.name)


_WARM = "Even files in memory are read slowly: a network or FUSE file system, or a very busy machine."
_DECODE = "Images are decoded slowly: is Pillow built without libjpeg-turbo, or the core throttled?"
_MEMORY = "Memory is slow: neighbours on the same host, or a single memory channel."
_PROCESS = "Python itself starts slowly: many .pth files, a slow disk, or a busy machine."
_IMPORT = "Importing torch takes long: its files come from a slow disk. Every script and spawned worker pays it."
_WORKER = "A loader's worker takes long to start: persistent_workers=True pays it once and not every epoch."
_HAND_OVER = "Handing batches over between processes is slow here: threads in place of processes may be faster."


def _disk(environment: Environment) -> UsualRange:
    low, high, because = _DISKS.get(environment.disk_kind, _ANY_DISK)
    return UsualRange(
        low, high, because, "The disk is slower than its kind: keep the data set in memory or on another disk."
    )


def _small_files(environment: Environment) -> UsualRange:
    low = _SMALL_FILES.get(environment.disk_kind, 50.0)
    remark = "Many small files are read slowly: reading ahead, more workers, or the files packed into few large ones."
    return UsualRange(low, None, "each waits for the disk once or twice", remark)


def _scaling(environment: Environment) -> UsualRange:
    shares = environment.num_usable > environment.num_cores
    because = "two threads share a core" if shares else "cores of their own, and memory in common"
    remark = "Cores slow each other down: two of them may share a physical core, or other programs use them."
    return UsualRange(0.45 if shares else 0.7, None, because, remark)


def _multiply(environment: Environment, capability: str) -> UsualRange:
    low, high = _PER_CORE.get(capability, _ANY_CORE)
    cores = max(1.0, min(environment.num_usable, float(environment.num_cores)))
    because = f"{capability or 'vector'} units of {cores:g} cores"
    remark = "fp32 is slow for such cores: too few threads (OMP_NUM_THREADS), a container's quota, or a busy machine."
    return UsualRange(low * cores, high * cores, because, remark)


def _of_device(reading: Reading) -> UsualRange | None:
    pinned = "Copies to the device are slow even from pinned memory: fewer PCIe lanes than usual, or a shared link."
    pageable = "Copies from ordinary memory are slow: pin_memory=True, and non_blocking=True."
    return {
        "copy_pinned": UsualRange(6.0, 60.0, "PCIe 3 x16 carries 12 GB/s, PCIe 5 four times that", pinned),
        "copy_pageable": UsualRange(2.0, 30.0, "through a buffer of the driver's", pageable),
        "multiply_fp32": UsualRange(
            2000.0, 150_000.0, "GPUs of the last ten years", "The device computes slowly in fp32: is it shared?"
        ),
    }.get(reading.name)


def _judge_precision(reading: Reading, test: SpeedTest) -> Judgement:
    """Compares a reading with fp32 on the same device. Mixed precision cannot gain more than the ratio."""
    name = reading.name.removeprefix("multiply_")
    full = test.reading("multiply_fp32", reading.device)
    if full is None or full.value <= 0 or reading.value <= 0:
        return Judgement(reading, None, None, "")
    ratio = reading.value / full.value
    because = "compared with fp32 here"
    where = "on the CPU" if reading.device == "cpu" else f"on {reading.device}"
    if ratio < 0.95:
        slower = f"{1 / ratio:.1f}" if ratio > 0.2 else f"{1 / ratio:.0f}"
        remark = f"{name} is {slower}x slower than fp32 {where}: mixed precision will not help here."
        return Judgement(reading, full.value, None, because, remark)
    is_poor = reading.device != "cpu" and ratio < 1.3
    remark = f"{name} gains only {ratio:.1f}x over fp32 {where}: no matrix units for it, or it is limited elsewhere."
    return Judgement(reading, full.value, None, because, remark if is_poor else "")
