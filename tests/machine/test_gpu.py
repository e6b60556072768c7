import threading
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.machine.gpu import GpuSampler, load_nvml, read_gpus
from slipstream.records import Gpu


class MadeNvml:
    """Two GPUs, of which the second has no power meter."""

    def __init__(self) -> None:
        self.asked_twice = threading.Event()
        self.num_readings = 0

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.1"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return f"Made {handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(total=1000, used=10 + handle)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        self.num_readings += 1
        if self.num_readings >= 4:
            self.asked_twice.set()
        return SimpleNamespace(gpu=50)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        if handle == 1:
            raise RuntimeError("Not Supported")
        return 250_000


def test_gpus_are_listed() -> None:
    gpus = read_gpus(MadeNvml())
    assert gpus == [Gpu(f"Made {index}", 1000, "9.0", "570.1") for index in (0, 1)]


def test_every_gpu_is_read_repeatedly() -> None:
    nvml = MadeNvml()
    sampler = GpuSampler(nvml, interval_s=0.001)
    sampler.start()
    assert nvml.asked_twice.wait(30)
    readings = sampler.stop()
    assert len(readings) >= 4
    first, second = readings[:2]
    assert (first.index, first.utilisation, first.memory_bytes, first.power_w) == (0, 0.5, 10, 250.0)
    assert (second.index, second.memory_bytes, second.power_w) == (1, 11, 0.0)
    assert [reading.time_ns for reading in readings] == sorted(reading.time_ns for reading in readings)
    assert not [thread for thread in threading.enumerate() if thread.name == "slipstream-gpu"]


def test_the_shortest_trial_has_a_reading() -> None:
    with GpuSampler(MadeNvml(), interval_s=60) as sampler:
        pass
    assert [reading.index for reading in sampler.stop()] == [0, 1]


def test_failing_gpu_is_not_an_error() -> None:
    class Lost(MadeNvml):
        def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
            raise RuntimeError("GPU is lost")

        def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
            raise RuntimeError("GPU is lost")

    assert read_gpus(Lost()) == []
    with GpuSampler(Lost(), interval_s=60) as sampler:
        pass
    assert sampler.stop() == []


def test_without_a_driver_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    if load_nvml() is not None:
        monkeypatch.setattr("slipstream.machine.gpu.load_nvml", lambda: None)
    assert read_gpus(None) == []
    sampler = GpuSampler(interval_s=60)
    sampler.start()
    assert sampler.stop() == []
