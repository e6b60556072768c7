"""Enforces a memory limit on a trial through the operating system, and measures the maximum memory in use in the same
way as the limit counts it. On the CPU this is the private writable memory of the one process that trains (RLIMIT_DATA,
VmData), not only its tensors. On an accelerator it is what torch's allocator reserves. The limit does not apply to
loader workers and other child processes."""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

import msgspec
import torch

_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python has this name since 3.12


class Mapped(msgspec.Struct, frozen=True):
    """The mapped memory of this process, in bytes."""

    most: int = 0  # the largest value of `now` so far
    now: int = 0
    data: int = 0  # the private and writable part of `now`, which RLIMIT_DATA counts

    @property
    def rest(self) -> int:
        """Files, shared memory, and addresses that are only reserved."""
        return self.now - self.data


class _UnenforceableError(Exception):
    """The system or torch cannot enforce a limit. The message is the reason."""


class MemoryLimit:
    """A memory limit. Call `begin` before the first forward pass, `level` after the warm-up, and `weigh` whenever the
    script is paused."""

    def __init__(self, limit_bytes: int = 0) -> None:
        self._limit_bytes = limit_bytes  # with 0, memory is only measured
        self._device: torch.device | None = None
        self._is_low = False
        self._level: Mapped | None = None
        self._fillers: list[mmap.mmap] = []
        self.start_bytes = 0
        self.fault = ""  # why the limit could not be enforced

    def begin(self, module: torch.nn.Module) -> None:
        if self._device is not None:
            return
        self._device = next(module.parameters()).device
        self.start_bytes = self._now_bytes()
        try:
            if self._limit_bytes and self._device.type == "cpu":
                self._lower()
            elif self._limit_bytes:
                _hold_device(self._device, self._limit_bytes)
        except _UnenforceableError as error:
            self.fault = str(error)

    def lift(self) -> None:
        """Removes the system's limit, in child processes of the script and at the end."""
        if self._is_low:
            import resource

            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            self._is_low = False

    def level(self) -> None:
        """Makes the kernel's high-water mark (VmPeak) show every byte that is mapped from now on. For this it fills the
        gap between the current and the maximum mapped size with reserved addresses, which use no memory."""
        mapped = read_mapped()
        if mapped.most > mapped.now:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
            self._fillers.append(mmap.mmap(-1, mapped.most - mapped.now, flags=flags, prot=0))
        self._level = read_mapped()

    def weigh(self) -> int:
        """Returns the maximum memory in use since `level`, counted as the limit counts it. Returns 0 if this system
        does not report it."""
        if self._device is not None and self._device.type != "cpu":
            module = torch.get_device_module(self._device)
            return int(getattr(module, "max_memory_reserved", lambda device: 0)(self._device))
        if self._level is None:
            return 0
        now, level = read_mapped(), self._level
        reserved = max(0, now.rest - level.rest)  # for example the stack of a new thread, or a batch in shared memory
        return max(level.data + now.most - level.most - reserved, now.data, level.data)

    def _now_bytes(self) -> int:
        if self._device is not None and self._device.type != "cpu":
            return int(getattr(torch.get_device_module(self._device), "memory_reserved", lambda d: 0)(self._device))
        return read_mapped().data

    def _lower(self) -> None:
        if sys.platform != "linux":
            raise _UnenforceableError("only Linux can enforce a memory limit on a process")
        import resource

        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        wanted = self._limit_bytes if hard == resource.RLIM_INFINITY else min(self._limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
        self._is_low = True
        os.register_at_fork(after_in_child=self.lift)


def _hold_device(device: torch.device, limit_bytes: int) -> None:
    """Limits torch's allocator on the device. This has not been tested on a GPU yet."""
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "set_per_process_memory_fraction") or not hasattr(module, "mem_get_info"):
        raise _UnenforceableError(f"torch cannot enforce a memory limit on {device.type}")
    total = int(module.mem_get_info(device)[1])
    module.set_per_process_memory_fraction(min(1.0, limit_bytes / total), device)


def read_mapped() -> Mapped:
    """Reads the mapped memory of this process. All values are 0 where the system does not report them."""
    sizes: dict[str, int] = {}
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("VmPeak:", "VmSize:", "VmData:")):
                    name, number, _ = line.split()
                    sizes[name] = 1024 * int(number)
    except OSError:
        return Mapped()
    return Mapped(sizes.get("VmPeak:", 0), sizes.get("VmSize:", 0), sizes.get("VmData:", 0))
