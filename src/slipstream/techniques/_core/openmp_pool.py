"""Runs a function once in every thread of the OpenMP pool that torch computes with. The pool is started if it does not
exist. Do not use this before the script trains: if a process forks afterwards, its child may be unable to compute."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from slipstream.data.threads.openmp import loaded_runtimes

_SHARE = 65_536  # elements for each thread: twice the smallest share that torch gives to a thread


def run_in_pool(function: Callable[[], object]) -> bool:
    """Returns whether the runtime could be called. libgomp, libomp and Intel's runtime all have this entry point."""
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
    """Returns the share of the pool's work that flushes denormals. All threads halve the smallest normal number, and
    the results are compared as bits."""
    smallest = torch.full((_SHARE * torch.get_num_threads(),), torch.finfo(torch.float32).tiny, device="cpu")
    return float((smallest.mul_(0.5).view(torch.int32) == 0).double().mean())
