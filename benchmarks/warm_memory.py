"""Reserves memory for what the first epoch stores, and frees a part of it before each block of this epoch.

A virtual machine may return free memory to its host (free page reporting). To get this memory back can cost ten times
as much as copying, in any program. Memory that was freed a moment ago has no such cost, and neither has the memory of a
machine without a host. The memory is reserved as pages of a file, in the sizes in which the page cache allocates pages.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from PIL import Image

PIECE = 1 << 20
NUM_TRIED = 200  # Number of pieces that are written to measure the cost of memory
NUM_ASKED = 200  # Number of photographs that are opened to find the mean size
PIXEL_BYTES = 4


def decoded_bytes(photographs: Path, num_images: int) -> int:
    """The bytes that this number of photographs takes in Pillow's memory."""
    sizes = [Image.open(path).size for path in sorted(photographs.rglob("*.jpg"))[:NUM_ASKED]]
    return num_images * PIXEL_BYTES * sum(width * height for width, height in sizes) // max(1, len(sizes))


class WarmMemory:
    def __init__(self, folder: Path, num_timings: int, timing_bytes: int) -> None:
        """Reserves the memory. The file takes as much space on the disk as in memory."""
        self._timing_pieces = -(-timing_bytes // PIECE)
        self._num_pieces = num_timings * self._timing_pieces
        self._file = os.open(folder / "held", os.O_RDWR | os.O_CREAT, 0o600)
        num_tried = min(NUM_TRIED, self._num_pieces)
        self._write(self._num_pieces - num_tried)
        self.new_us = self._write(num_tried)  # Time for a piece of memory that was not in use for a while
        os.ftruncate(self._file, (self._num_pieces - num_tried) * PIECE)
        self.used_us = self._write(num_tried)  # Time for a piece of memory that was just freed

    @property
    def remark(self) -> str:
        return (
            "Memory for what a block of the first epoch stores is reserved, and freed before the block "
            f"(warm_memory.py). To write a megabyte of it takes {self.used_us:,.0f} µs, and to write one that was not "
            f"in use for a while takes {self.new_us:,.0f} µs on this machine. "
        )

    def give(self) -> None:
        """Frees the memory that one block needs."""
        self._num_pieces = max(0, self._num_pieces - self._timing_pieces)
        os.ftruncate(self._file, self._num_pieces * PIECE)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, num_pieces: int) -> float:
        """Appends pieces to the file. Returns the microseconds of CPU time for each piece."""
        piece, end = bytes(PIECE), os.fstat(self._file).st_size
        start_s = time.process_time()
        for number in range(num_pieces):
            os.pwrite(self._file, piece, end + number * PIECE)
        return (time.process_time() - start_s) / max(1, num_pieces) * 1e6
