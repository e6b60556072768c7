"""Records PyTorch's own snapshot of the caching allocator over the observed step, for its viewer
(pytorch.org/memory_viz). The snapshot contains every segment, every block, and the stack that requested it. Only CUDA
has one; the CPU's allocator keeps no history. The recording has not been run on a GPU yet."""

from __future__ import annotations

from typing import Any

import torch

_MAX_ENTRIES = 1_000_000  # allocations and releases; older ones are dropped


class AllocatorSnapshot:
    """Call `start` before the observed steps and `keep` after them. Without a path it does nothing."""

    def __init__(self, path: str, history: Any = None) -> None:
        self.path = path
        self._history: Any = history if history is not None else torch.cuda.memory
        self._is_recording = False

    def start(self, device: str) -> None:
        if self.path and device.startswith("cuda") and not self._is_recording:
            self._history._record_memory_history(max_entries=_MAX_ENTRIES)
            self._is_recording = True

    def keep(self) -> None:
        if self._is_recording:
            self._history._dump_snapshot(self.path)
            self.end()
            self.path = ""  # the snapshot is of the script's own batch, not of smaller ones

    def end(self) -> None:
        if self._is_recording:
            self._is_recording = False
            self._history._record_memory_history(enabled=None)
