"""Makes the C library of this process keep what is freed for what is allocated next. The samples of a batch are freed
at once, glibc returns their memory to the system, and the next batch's are faulted in page by page again. Other C
libraries are left alone, and so is one that the user has given such settings."""

from __future__ import annotations

import ctypes
import os
import platform

MOST_KEPT = 128 << 20  # bytes at the end of the heap
_LARGEST_BLOCK = 32 << 20  # that comes from the heap; glibc takes no more
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of them
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed() -> bool:
    """Whether it does from now on."""
    if platform.libc_ver()[0] != "glibc" or any(os.environ.get(name) for name in _SETTINGS):
        return False
    library = ctypes.CDLL(None)
    is_kept = bool(library.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK))
    return bool(library.mallopt(_TRIM_THRESHOLD, MOST_KEPT)) and is_kept
