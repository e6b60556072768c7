"""The OpenMP runtime that torch computes with, as a library to call."""

from __future__ import annotations

import ctypes

import torch


def loaded_runtimes() -> list[ctypes.CDLL]:
    """Only what this process has loaded already: opening another runtime would make a second pool."""
    try:
        with open("/proc/self/maps") as maps:
            paths = dict.fromkeys(line.split()[-1] for line in maps if "omp" in line.rpartition("/")[2])
    except OSError:  # not Linux
        return []
    return [ctypes.CDLL(path) for path in paths if path.startswith("/")]


def compute_alone() -> None:
    """One OpenMP thread for this thread's own operations, as a worker process has. Torch's own switch would set it for
    the whole process as well: for threads made later, and for MKL."""
    torch.get_num_threads()  # torch settles a new thread's number when it is first asked
    runtime = next((one for one in loaded_runtimes() if hasattr(one, "omp_set_num_threads")), None)
    if runtime is not None:
        runtime.omp_set_num_threads(1)
