"""Controls whether this process keeps freed memory for later allocations or returns it to the system.

The samples of a batch are freed all at once. By default glibc then returns their memory, and the system must provide
the memory of the next batch page by page. Other C libraries are not changed, and neither are settings that the user has
made."""

from __future__ import annotations

import ctypes
import os
import platform

MOST_KEPT = 128 << 20  # maximum of free bytes at the end of the heap
_LARGEST_BLOCK = 32 << 20  # maximum size of a block from the heap; glibc accepts no larger value
_SMALLEST_MAP = 1 << 18  # minimum size of a block with its own mapping after `return_freed`
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed() -> bool:
    """Keeps freed memory from now on. Returns whether that succeeded."""
    if platform.libc_ver()[0] != "glibc" or any(os.environ.get(name) for name in _SETTINGS):
        return False
    library = ctypes.CDLL(None)
    is_kept = bool(library.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK))
    return bool(library.mallopt(_TRIM_THRESHOLD, MOST_KEPT)) and is_kept


def return_freed() -> bool:
    """Returns freed memory to the system, because free memory in the heap counts against a memory limit of the process.
    From now on large blocks get their own mapping, and its memory is returned as soon as the block is freed. The result
    tells whether any memory was returned."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _SMALLEST_MAP)
    return bool(library.malloc_trim(0))
