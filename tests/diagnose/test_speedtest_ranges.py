"""Readings are compared with their usual ranges."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.speedtest_ranges import general_remarks, judge_machine
from slipstream.records import Reading, SpeedTest
from slipstream.testing.made_sessions import made_environment


def made_test(*readings: Reading, **facts: object) -> SpeedTest:
    environment = msgspec.structs.replace(made_environment(), **facts)
    return SpeedTest("2026-01-01T00:00:00+00:00", environment, list(readings), 20.0, cpu_capability="AVX2")


def remark_of(test: SpeedTest, name: str) -> str:
    return next(one.remark for one in judge_machine(test) if one.reading.name == name)


def test_slow_half_precision_is_named_and_quick_is_not() -> None:
    slow = made_test(Reading("multiply_fp32", 60.0, "GFLOP/s"), Reading("multiply_bf16", 5.0, "GFLOP/s"))
    told = remark_of(slow, "multiply_bf16")
    assert told == "bf16 is 12x slower than fp32 on the CPU: mixed precision will not help here."
    quick = made_test(Reading("multiply_fp32", 60.0, "GFLOP/s"), Reading("multiply_bf16", 110.0, "GFLOP/s"))
    assert remark_of(quick, "multiply_bf16") == ""
    alone = made_test(Reading("multiply_bf16", 110.0, "GFLOP/s"))
    assert remark_of(alone, "multiply_bf16") == ""
    gpu = made_test(Reading("multiply_fp32", 9e3, "GFLOP/s", "cuda"), Reading("multiply_fp16", 1e4, "GFLOP/s", "cuda"))
    assert "gains only 1.1x over fp32 on cuda" in remark_of(gpu, "multiply_fp16")


def test_a_disk_is_judged_by_its_kind() -> None:
    reading = Reading("disk_cold", 150.0, "MB/s")
    assert "slower than its kind" in remark_of(made_test(reading, disk_kind="ssd"), "disk_cold")
    assert remark_of(made_test(reading, disk_kind="hdd"), "disk_cold") == ""


def test_times_are_worse_when_longer_and_rates_when_lower() -> None:
    test = made_test(
        Reading("worker_start", 900.0, "ms"), Reading("process_start", 20.0, "ms"), Reading("decode", 90.0, "images/s")
    )
    assert "persistent_workers" in remark_of(test, "worker_start") and "libjpeg-turbo" in remark_of(test, "decode")
    assert remark_of(test, "process_start") == ""


def test_every_usual_range_is_a_range_with_a_reason() -> None:
    names = ("disk_cold", "disk_warm", "disk_files", "decode", "decode_scaling", "memory_copy", "multiply_fp32")
    names += ("process_start", "import_torch", "worker_start", "hand_over")
    test = made_test(*(Reading(name, 1.0, "ms" if "start" in name or "import" in name else "MB/s") for name in names))
    for one in judge_machine(test):
        assert one.because and (one.low is not None or one.high is not None)
        assert one.low is None or one.high is None or one.low < one.high
    device = made_test(Reading("copy_pinned", 1.0, "GB/s", "cuda"), Reading("copy_pageable", 9.0, "GB/s", "cuda"))
    assert "PCIe lanes" in remark_of(device, "copy_pinned") and not remark_of(device, "copy_pageable")


def test_general_remarks_come_first() -> None:
    told = list(general_remarks(made_test(load=7.0, num_logical=8, shm_bytes=64 << 20)))
    assert "load of 7.0 on 2 cores" in told[0] and "2 of 8 cores" in told[1] and "--shm-size" in told[2]
    (idle,) = general_remarks(made_test(idle_file_s=60.0))
    assert "were not used for 60 s" in idle
    assert list(general_remarks(made_test())) == []
