"""The history of CUDA's caching allocator: every allocation and release, in order. torch's profiler does not see the
releases that happen outside an operator, such as those of variables that Python drops."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

# A step of a large model makes some ten thousand entries; an entry takes about 200 bytes.
_MAX_ENTRIES = 1_000_000


class HistoryEntry(msgspec.Struct, frozen=True, gc=False):
    is_release: bool
    address: int
    num_bytes: int  # as requested; the allocator rounds it up
    time_ns: int  # since 1970, in steps of a microsecond


class AllocatorHistory:
    """Records from `start` to `stop`. If the script records the history itself, its recording is read and left on."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._is_ours = False

    def start(self) -> None:
        if not _is_recording():
            self._is_ours = True
            torch.cuda.memory._record_memory_history("all", context=None, max_entries=_MAX_ENTRIES)

    def read(self) -> list[HistoryEntry]:
        snapshot: Any = torch.cuda.memory._snapshot(self._device)
        index = torch.device(self._device).index or 0
        return [
            HistoryEntry(entry["action"] != "alloc", entry["addr"], entry["size"], entry["time_us"] * 1000)
            for entry in snapshot["device_traces"][index]
            if entry["action"] in ("alloc", "free_requested")
        ]

    def stop(self) -> None:
        if self._is_ours:
            self._is_ours = False
            torch.cuda.memory._record_memory_history(None)


def _is_recording() -> bool:
    is_enabled: Any = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return is_enabled is not None and bool(is_enabled())
