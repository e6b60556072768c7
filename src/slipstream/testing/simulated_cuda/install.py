"""Installs the simulated device in torch. The device supplies the functions of `torch._C` that a CPU build lacks.
torch's own Python code for CUDA then runs as it does on a GPU.

torch calls `install_from_environment` at the end of its import (entry point `torch.backends`).
"""

from __future__ import annotations

import ctypes
import importlib
import os
from pathlib import Path
from typing import Any

from slipstream.testing.simulated_cuda import bindings, memory
from slipstream.testing.simulated_cuda.settings import LIBRARY

_installed: bindings.Library | None = None


def install_from_environment() -> None:
    path = os.environ.get(LIBRARY)
    if path:
        install(Path(path))


def install(path: Path) -> bindings.Library:
    """Makes the device available in this process. Call this function before any other use of torch.cuda."""
    global _installed
    if _installed is None:
        import torch

        library = bindings.Library(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
        library.call("register_profiler")
        _install_functions(torch, library)
        _install_classes(torch, library)
        _install_facts(torch)
        _installed = library
    return _installed


def library() -> bindings.Library:
    """Returns the library of the simulated device that is installed in this process."""
    assert _installed is not None, "the simulated device is not installed in this process"
    return _installed


def is_installed() -> bool:
    return _installed is not None


def _install_functions(torch: Any, library: bindings.Library) -> None:
    functions = bindings.functions(torch, library) | memory.functions(torch, library)
    for name, function in functions.items():
        setattr(torch._C, name, function)
    # torch.cuda copied these functions when it was imported.
    torch.cuda._is_in_bad_fork = functions["_cuda_isInBadFork"]
    torch.cuda._exchange_device = functions["_cuda_exchangeDevice"]
    torch.cuda._maybe_exchange_device = functions["_cuda_maybeExchangeDevice"]
    torch.cuda._cudart = bindings.Runtime(torch)
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = functions["_cuda_isCurrentStreamCapturing"]
    _let_storages_be_made(torch)


def _install_classes(torch: Any, library: bindings.Library) -> None:
    """Defines torch.cuda.Stream and torch.cuda.Event again, on base classes that work."""
    torch._C._CudaStreamBase = bindings.stream_base(torch)
    torch._C._CudaEventBase = bindings.event_base(torch, library)
    streams = importlib.reload(torch.cuda.streams)
    for module in (torch.cuda, torch.cuda.graphs):
        for name in ("Stream", "Event", "ExternalStream"):
            if hasattr(module, name):
                setattr(module, name, getattr(streams, name))


def _install_facts(torch: Any) -> None:
    torch.version.cuda = "12.8"
    torch._C._has_cuda = True
    torch.backends.cuda.is_built = lambda: True
    kinds = {torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA}
    torch.autograd.profiler._supported_activities = lambda: kinds
    torch.profiler.profiler.supported_activities = lambda: kinds


def _let_storages_be_made(torch: Any) -> None:
    """Makes `torch.UntypedStorage(n, device="cuda")` work, which deepcopy and torch.load use. A CPU build cannot create
    this storage."""
    make = torch._C.StorageBase.__new__

    def new(cls: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None:
            return make(cls, *args, **kwargs)
        if torch.device(device).type != "cuda":
            return make(cls, *args, device=device, **kwargs)
        num_bytes = args[0] if args and isinstance(args[0], int) else 0
        return torch.empty(num_bytes, dtype=torch.uint8, device=device).untyped_storage()

    torch.UntypedStorage.__new__ = new
