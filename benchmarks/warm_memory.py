"""Memory for what the first epoch keeps, held ready and given free before each of its laps. A virtual machine may hand
its free memory back to its host (free page reporting); to take it again can cost ten times the copying, in any program,
while memory that was in use a moment ago, or that of a machine without a host, costs nothing more. Held as pages of a
file, in the sizes that a file takes them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from PIL import Image

PIECE = 1 << 20
NUM_TRIED = 200  # pieces that tell what memory costs
NUM_ASKED = 200  # photographs that tell the mean size
PIXEL_BYTES = 4


def decoded_bytes(photographs: Path, num_images: int) -> int:
    """Of so many photographs in Pillow's memory."""
    sizes = [Image.open(path).size for path in sorted(photographs.rglob("*.jpg"))[:NUM_ASKED]]
    return num_images * PIXEL_BYTES * sum(width * height for width, height in sizes) // max(1, len(sizes))


class WarmMemory:
    def __init__(self, folder: Path, num_timings: int, timing_bytes: int) -> None:
        """As much room on the disk is taken."""
        self._timing_pieces = -(-timing_bytes // PIECE)
        self._num_pieces = num_timings * self._timing_pieces
        self._file = os.open(folder / "held", os.O_RDWR | os.O_CREAT, 0o600)
        num_tried = min(NUM_TRIED, self._num_pieces)
        self._write(self._num_pieces - num_tried)
        self.new_us = self._write(num_tried)  # for a piece of memory that nobody had for a while
        os.ftruncate(self._file, (self._num_pieces - num_tried) * PIECE)
        self.used_us = self._write(num_tried)  # that was given free just now

    @property
    def remark(self) -> str:
        return (
            "Memory for what a lap of the first epoch keeps is held ready and given free before it (warm_memory.py): a "
            f"megabyte of it takes {self.used_us:,.0f} µs to write, one that nobody had for a while {self.new_us:,.0f} "
            "µs on this machine. "
        )

    def give(self) -> None:
        """What one lap needs."""
        self._num_pieces = max(0, self._num_pieces - self._timing_pieces)
        os.ftruncate(self._file, self._num_pieces * PIECE)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, num_pieces: int) -> float:
        """Behind what is there; microseconds of processor time for a piece."""
        piece, end = bytes(PIECE), os.fstat(self._file).st_size
        start_s = time.process_time()
        for number in range(num_pieces):
            os.pwrite(self._file, piece, end + number * PIECE)
        return (time.process_time() - start_s) / max(1, num_pieces) * 1e6
