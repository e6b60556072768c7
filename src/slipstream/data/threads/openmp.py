"""Access to the OpenMP runtime that torch computes with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

_SHARE = 65_536  # elements for each thread; this is twice the smallest share that torch gives to a thread


def loaded_runtimes() -> list[ctypes.CDLL]:
    """Returns the OpenMP runtimes that this process has already loaded. Loading another one would create a second
    thread pool."""
    try:
        with open("/proc/self/maps") as maps:
            paths = dict.fromkeys(line.split()[-1] for line in maps if "omp" in line.rpartition("/")[2])
    except OSError:  # not Linux
        return []
    return [ctypes.CDLL(path) for path in paths if path.startswith("/")]


def compute_alone() -> None:
    """Makes the operations of the calling thread use one OpenMP thread, as in a worker process. `torch.set_num_threads`
    would also change threads that are created later, and MKL."""
    torch.get_num_threads()  # the first call in a thread sets the number; later it would undo our setting
    runtime = next((one for one in loaded_runtimes() if hasattr(one, "omp_set_num_threads")), None)
    if runtime is not None:
        runtime.omp_set_num_threads(1)


def run_in_pool(function: Callable[[], object]) -> bool:
    """Runs a function once in every thread of the pool that torch computes with. The pool is started if it does not
    exist. Do not call this before the script trains: if the process forks afterwards, its child may be unable to
    compute. Returns whether the runtime could be called. libgomp, libomp and Intel's runtime all have the entry point
    `GOMP_parallel`."""
    for library in loaded_runtimes():
        parallel = getattr(library, "GOMP_parallel", None)
        if parallel is None:
            continue
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        parallel.argtypes, parallel.restype = [kind, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
        body = kind(lambda _: function() and None)
        parallel(body, None, torch.get_num_threads(), 0)
        return True
    return False


def share_that_flushes() -> float:
    """Returns the share of the pool's results in which a denormal number was flushed to zero. All threads halve the
    smallest normal number, and the bits of the results are compared with zero."""
    smallest = torch.full((_SHARE * torch.get_num_threads(),), torch.finfo(torch.float32).tiny, device="cpu")
    return float((smallest.mul_(0.5).view(torch.int32) == 0).double().mean())
