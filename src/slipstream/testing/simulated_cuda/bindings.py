"""Implements the functions and classes of `torch._C` for devices, streams and events on the simulated device."""

from __future__ import annotations

import ctypes
import enum
import math
import os
import types
from collections.abc import Callable
from typing import Any

from slipstream.testing.simulated_cuda.settings import PREFIX, Settings

_CLOCK_HZ = 1_000_000_000  # torch.cuda._sleep counts cycles. A cycle of the simulated device takes a nanosecond.
_PRIORITIES = (0, -5)


class Library:
    """Calls the C functions of the library, without their common prefix."""

    def __init__(self, native: ctypes.CDLL) -> None:
        self._native = native
        native.simulated_cuda_last_error.restype = ctypes.c_char_p
        native.simulated_cuda_fraction.restype = ctypes.c_double
        native.simulated_cuda_elapsed_ms.restype = ctypes.c_double
        native.simulated_cuda_elapsed_ms.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        native.simulated_cuda_set_fraction.argtypes = [ctypes.c_int, ctypes.c_double]
        native.simulated_cuda_sleep.argtypes = [ctypes.c_int64]
        native.simulated_cuda_record_history.argtypes = [ctypes.c_int64, ctypes.c_bool]
        for name in ("history", "blocks"):
            getattr(native, f"simulated_cuda_{name}").argtypes = [ctypes.c_void_p, ctypes.c_int64]
        for name in ("history", "blocks", "num_launches", "num_waits", "num_pending"):
            getattr(native, f"simulated_cuda_{name}").restype = ctypes.c_int64
        for name in ("initialise", "is_initialised", "is_forked", "sleep", "end_capture", "is_capturing"):
            getattr(native, f"simulated_cuda_{name}").restype = ctypes.c_bool

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._native, f"simulated_cuda_{name}")(*arguments)

    def check(self, name: str, *arguments: Any) -> None:
        """Calls a function that returns whether it succeeded. Raises RuntimeError if it did not."""
        if not self.call(name, *arguments):
            raise RuntimeError(self.call("last_error").decode())

    # Functions for tests, which torch.cuda does not have

    def num_launches(self) -> int:
        return int(self.call("num_launches"))

    def num_waits(self) -> int:
        """Returns the number of times that the host has waited for a stream or a device."""
        return int(self.call("num_waits"))

    def num_pending(self, device: int = 0) -> int:
        return int(self.call("num_pending", device))

    def begin_capture(self) -> None:
        """Begins a simulated graph capture, which becomes invalid if a call waits or queries an event."""
        self.call("begin_capture")

    def end_capture(self) -> bool:
        """Ends the simulated graph capture. Returns whether the capture is still valid."""
        return bool(self.call("end_capture"))


def functions(torch: Any, library: Library) -> dict[str, Callable[..., Any]]:
    """Returns the functions of `torch._C` for devices and streams, by name."""
    native = torch._C

    def initialise() -> None:
        library.check("initialise")
        torch.cuda.default_generators = _default_generators(torch, library)
        torch.cuda._get_device_properties = lambda device: _properties(device)

    def stream_facts(stream: Any) -> tuple[int, int, int]:
        return stream.stream_id, stream.device_index, stream.device_type

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        native._accelerator_setStream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    def default_stream(device: int) -> tuple[int, int, int]:
        return 0, device, native._accelerator_getStream(device).device_type

    return {
        "_cuda_init": initialise,
        "_cuda_isInBadFork": lambda: bool(library.call("is_forked")),
        "_cuda_getDeviceCount": lambda: int(library.call("num_devices")),
        "_cuda_getDevice": native._accelerator_getDeviceIndex,
        "_cuda_setDevice": native._accelerator_setDeviceIndex,
        "_cuda_exchangeDevice": native._accelerator_exchangeDevice,
        "_cuda_maybeExchangeDevice": native._accelerator_maybeExchangeDevice,
        "_cuda_synchronize": lambda: native._accelerator_synchronizeDevice(native._accelerator_getDeviceIndex()),
        "_cuda_getCurrentStream": lambda device: stream_facts(native._accelerator_getStream(device)),
        "_cuda_getDefaultStream": default_stream,
        "_cuda_setStream": set_stream,
        "_cuda_getCurrentRawStream": lambda device: native._accelerator_getStream(device).stream_id,
        "_cuda_isCurrentStreamCapturing": lambda: bool(library.call("is_capturing")),
        "_cuda_canDeviceAccessPeer": lambda device, peer: device != peer,
        "_cuda_getArchFlags": lambda: "sm_" + capability().replace(".", ""),
        "_cuda_getCompiledVersion": lambda: 12080,
        "_cuda_sleep": lambda cycles: library.check("sleep", int(cycles * 1e9 / _CLOCK_HZ)),
        "_cuda_ipc_collect": lambda: None,
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
    }


def capability() -> str:
    return os.environ.get(f"{PREFIX}CAPABILITY") or Settings.capability


def _properties(device: int) -> types.SimpleNamespace:
    major, _, minor = capability().partition(".")
    return types.SimpleNamespace(
        name=f"Simulated GPU {device}",
        major=int(major),
        minor=int(minor or 0),
        total_memory=int(os.environ.get(f"{PREFIX}MEMORY_MB") or Settings.memory_mb) << 20,
        multi_processor_count=4,
        max_threads_per_multi_processor=1536,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        L2_cache_size=4 << 20,
        clock_rate=_CLOCK_HZ // 1000,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        uuid=f"simulated-{device}",
    )


def _default_generators(torch: Any, library: Library) -> tuple[Any, ...]:
    library.call("hand_out_default_generators", True)
    try:
        return tuple(torch.Generator(f"cuda:{at}") for at in range(library.call("num_devices")))
    finally:
        library.call("hand_out_default_generators", False)


def stream_base(torch: Any) -> type:
    # torch is an argument, because this file does not import it.
    class CudaStreamBase(torch.Stream):  # type: ignore[misc]
        def __new__(cls, priority: int = 0, **kwargs: Any) -> Any:
            if kwargs:
                return super().__new__(cls, **kwargs)
            torch.cuda._lazy_init()
            return super().__new__(cls, torch.device("cuda", torch.cuda.current_device()), priority=priority)

        @property
        def cuda_stream(self) -> int:
            return int(self.stream_id)

        @property
        def priority(self) -> int:
            return 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return _PRIORITIES

    return CudaStreamBase


def event_base(torch: Any, library: Library) -> type:
    class CudaEventBase(torch.Event):  # type: ignore[misc]
        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
        ) -> Any:
            event = super().__new__(cls, torch.device("cuda"), enable_timing=enable_timing, blocking=blocking)
            event._enables_timing = enable_timing
            return event

        def elapsed_time(self, end_event: Any) -> float:
            events = (self, end_event)
            if not all(event._enables_timing for event in events):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if not all(event.event_id for event in events):
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if self.device != end_event.device:
                raise RuntimeError("CUDA error: invalid resource handle")
            elapsed_ms = library.call("elapsed_ms", self.event_id, end_event.event_id)
            if math.isnan(elapsed_ms):
                raise RuntimeError("CUDA error: device not ready")
            return float(elapsed_ms)

        @property
        def cuda_event(self) -> int:
            return int(self.event_id)

    return CudaEventBase


class _Error(enum.IntEnum):
    success = 0


class Runtime:
    """Replaces the module of the CUDA runtime, `torch.cuda.cudart()`."""

    cudaError = _Error  # noqa: N815  # CUDA's own name

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:  # noqa: N802
        free, total = self._torch._C._accelerator_getMemoryInfo(device)
        return int(free), int(total)

    def cudaGetErrorString(self, error: _Error) -> str:  # noqa: N802
        return error.name

    def cudaProfilerStart(self) -> _Error:  # noqa: N802
        return _Error.success

    def cudaProfilerStop(self) -> _Error:  # noqa: N802
        return _Error.success
