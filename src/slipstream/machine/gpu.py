"""Reads NVIDIA GPUs from the parent process through NVML: which GPUs there are, and how busy they are during a trial.
Without the library, a driver or a GPU the results are empty, which is not an error.

`find_idle_gpu` finds a GPU that the script does not use. It uses only records, because the parent process has no torch.
"""

from __future__ import annotations

import contextlib
import threading
import time
from types import TracebackType
from typing import Any

from slipstream.records import Environment, Gpu, GpuReading, IdleGpu, TorchFacts


def load_nvml() -> Any | None:
    """Returns the initialised NVML library, or None if it is missing or no driver answers."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except Exception:  # a missing driver raises one of several kinds of errors
        return None
    return pynvml


def read_gpus(nvml: Any | None) -> list[Gpu]:
    if nvml is None:
        return []
    try:
        handles = _handles(nvml)
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        return [_read_gpu(nvml, handle, driver) for handle in handles]
    except Exception:  # a GPU that fails must not end a check
        return []


def _read_gpu(nvml: Any, handle: Any, driver: str) -> Gpu:
    capability = ""
    with contextlib.suppress(Exception):
        capability = ".".join(str(part) for part in nvml.nvmlDeviceGetCudaComputeCapability(handle))
    memory = 0
    with contextlib.suppress(Exception):  # a GPU that shares the host's memory has no memory of its own
        memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    return Gpu(name=_text(nvml.nvmlDeviceGetName(handle)), memory_bytes=memory, capability=capability, driver=driver)


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class GpuSampler:
    """A thread of the parent process that reads every GPU twice a second."""

    def __init__(self, nvml: Any | None = None, interval_s: float = 0.5) -> None:
        self._nvml = nvml if nvml is not None else load_nvml()
        self._interval_s = interval_s
        self._readings: list[GpuReading] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._nvml is None or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._sample, name="slipstream-gpu", daemon=True)
        self._thread.start()

    def stop(self) -> list[GpuReading]:
        self._ended.set()
        if self._thread is not None:
            # A driver that hangs must not delay the report.
            self._thread.join(timeout=2.0)
        return list(self._readings)

    def __enter__(self) -> GpuSampler:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _sample(self) -> None:
        try:
            handles = _handles(self._nvml)
        except Exception:
            return
        # The thread reads before it waits, so that even the shortest trial has a reading.
        while handles:
            for index, handle in enumerate(handles):
                self._read(index, handle)
            if self._ended.wait(self._interval_s):
                return

    def _read(self, index: int, handle: Any) -> None:
        nvml: Any = self._nvml
        try:
            utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except Exception:  # slices of a GPU (MIG) report no utilisation
            return
        memory, power_w = 0, 0.0
        with contextlib.suppress(Exception):
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        with contextlib.suppress(Exception):
            power_w = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        self._readings.append(GpuReading(time.perf_counter_ns(), index, utilisation, memory, power_w))


def find_idle_gpu(environment: Environment, torch_facts: TorchFacts | None) -> IdleGpu | None:
    """Returns the GPU that is idle while the model is on the CPU, if there is one."""
    facts = torch_facts or environment.torch
    if facts is None or facts.device.partition(":")[0] not in ("", "cpu"):
        return None
    name = environment.gpus[0].name if environment.gpus else facts.accelerator
    if environment.gpus and not facts.accelerator_build:
        return IdleGpu(name, "cpu_build")
    if environment.gpus and not facts.accelerator:
        return IdleGpu(name, "invisible")
    return IdleGpu(name, "unused") if facts.accelerator else None
