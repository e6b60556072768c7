"""What becomes of freed memory in this process: kept for what is allocated next, or given back to the system. The
samples of a batch are freed at once, glibc returns their memory, and the next batch's are faulted in page by page.
Other C libraries are left alone, and so is one that the user has told what to keep."""

from __future__ import annotations

import ctypes
import os
import platform

MOST_KEPT = 128 << 20  # bytes at the end of the heap
_LARGEST_BLOCK = 32 << 20  # that comes from the heap; glibc takes no more
_SMALLEST_MAP = 1 << 18  # bytes, once memory is short
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of them
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed() -> bool:
    """Whether it does from now on."""
    if platform.libc_ver()[0] != "glibc" or any(os.environ.get(name) for name in _SETTINGS):
        return False
    library = ctypes.CDLL(None)
    is_kept = bool(library.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK))
    return bool(library.mallopt(_TRIM_THRESHOLD, MOST_KEPT)) and is_kept


def return_freed() -> bool:
    """Whether any was given back. What is free in the heap else counts against a limit of the process. From now on
    large blocks are maps of their own, which end when they are freed."""
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _SMALLEST_MAP)
    return bool(library.malloc_trim(0))
