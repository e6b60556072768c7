"""The functions of `torch._C` for the memory of the device: statistics, limits, and the allocator's history."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any

from slipstream.testing.simulated_cuda.bindings import Library

# The order is the order of c10::CachingDeviceAllocator::TraceEntry::Action.
_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")


class _HistoryEntry(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("action", "device")),
        *((name, ctypes.c_int64) for name in ("address", "size", "stream", "time_us")),
    )


class _BlockRow(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("segment", "address", "size", "requested", "stream")),
        *((name, ctypes.c_int32) for name in ("device", "is_small", "is_used", "waits")),
    )


def functions(torch: Any, library: Library) -> dict[str, Callable[..., Any]]:
    native = torch._C
    is_recording = False

    def record_history(
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        *unused: Any,
    ) -> None:
        if enabled not in (None, "state", "all"):
            raise RuntimeError(f"expected state or all, got {enabled}")
        nonlocal is_recording
        is_recording = enabled is not None
        library.call("record_history", min(max_entries, sys.maxsize) if enabled == "all" else 0, clear_history)

    return {
        "_cuda_memoryStats": native._accelerator_getDeviceStats,
        "_cuda_resetPeakMemoryStats": native._accelerator_resetPeakStats,
        "_cuda_resetAccumulatedMemoryStats": native._accelerator_resetAccumulatedStats,
        "_cuda_emptyCache": native._accelerator_emptyCache,
        "_cuda_setMemoryFraction": lambda fraction, device: library.call("set_fraction", device, fraction),
        "_cuda_getMemoryFraction": lambda device: float(library.call("fraction", device)),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_record_memory_history": record_history,
        "_cuda_isHistoryEnabled": lambda: is_recording,
        "_cuda_memorySnapshot": lambda pool=None: _snapshot(library),
        "_cuda_beginAllocateToPool": lambda *_: None,
        "_cuda_endAllocateToPool": lambda *_: None,
        "_cuda_releasePool": lambda *_: None,
    }


def _snapshot(library: Library) -> dict[str, Any]:
    traces: list[list[dict[str, Any]]] = [[] for _ in range(library.call("num_devices"))]
    for entry in _rows(library, "history", _HistoryEntry):
        traces[entry.device].append(
            {
                "action": _ACTIONS[entry.action],
                "addr": entry.address,
                "size": entry.size,
                "stream": entry.stream,
                "time_us": entry.time_us,
                "frames": [],
            }
        )
    segments = groupby(_rows(library, "blocks", _BlockRow), key=lambda row: row.segment)
    return {
        "segments": [_segment(address, list(rows)) for address, rows in segments],
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(address: int, rows: list[Any]) -> dict[str, Any]:
    def state(row: Any) -> str:
        return "active_pending_free" if row.waits else "active_allocated" if row.is_used else "inactive"

    used = [row for row in rows if row.is_used]
    return {
        "device": rows[0].device,
        "address": address,
        "total_size": sum(row.size for row in rows),
        "allocated_size": sum(row.size for row in used),
        "active_size": sum(row.size for row in used),
        "requested_size": sum(row.requested for row in used),
        "stream": rows[0].stream,
        "segment_type": "small" if rows[0].is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [
            {
                "address": row.address,
                "size": row.size,
                "requested_size": row.requested,
                "state": state(row),
                "frames": [],
            }
            for row in rows
        ],
    }


def _rows(library: Library, function: str, row_type: Any) -> list[Any]:
    num_rows = int(library.call(function, None, 0))
    rows = (row_type * num_rows)()
    # Rows that were added after they had been counted are left out.
    return list(rows)[: int(library.call(function, ctypes.byref(rows), num_rows))]
