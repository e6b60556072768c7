"""Runs a function once in every thread of the OpenMP pool that torch computes with. Starts the pool if there is none,
so it must not be used before the script trains: a process that forks afterwards may not compute in the child."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from slipstream.data.threads.openmp import loaded_runtimes

_SHARE = 65_536  # elements for each thread: twice what torch hands out at the least


def run_in_pool(function: Callable[[], object]) -> bool:
    """Whether the runtime could be asked. libgomp, libomp and Intel's all have this entry point."""
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
    """Of the pool's work: half of the smallest normal number, computed by all threads, compared as bits."""
    smallest = torch.full((_SHARE * torch.get_num_threads(),), torch.finfo(torch.float32).tiny, device="cpu")
    return float((smallest.mul_(0.5).view(torch.int32) == 0).double().mean())
