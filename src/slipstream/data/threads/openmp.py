"""Access to the OpenMP runtime that torch computes with."""

from __future__ import annotations

import ctypes

import torch


def loaded_runtimes() -> list[ctypes.CDLL]:
    """The OpenMP runtimes that this process has already loaded. Loading another one would create a second thread
    pool."""
    try:
        with open("/proc/self/maps") as maps:
            paths = dict.fromkeys(line.split()[-1] for line in maps if "omp" in line.rpartition("/")[2])
    except OSError:  # not Linux
        return []
    return [ctypes.CDLL(path) for path in paths if path.startswith("/")]


def compute_alone() -> None:
    """Use one OpenMP thread for the operations of the calling thread, as in a worker process. `torch.set_num_threads`
    would also change it for threads that are created later, and for MKL."""
    torch.get_num_threads()  # the first call in a thread sets the thread's number, which would undo ours later
    runtime = next((one for one in loaded_runtimes() if hasattr(one, "omp_set_num_threads")), None)
    if runtime is not None:
        runtime.omp_set_num_threads(1)
