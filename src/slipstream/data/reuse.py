"""Puts buffers that are used again between a loader's workers and the main process. The worker collates straight into
them; torch's own loop, queue and pinning stay as they are. Where anything of ours fails, batches go torch's way."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate, worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from slipstream.data.buffers import Pool, why_not
from slipstream.data.lending import is_lending
from slipstream.data.mirrors import MIRRORS
from slipstream.data.parcels import ParcelQueue
from slipstream.seams.patch import Patches

_SHARING = ("_share_fd_cpu_", "_share_filename_cpu_")  # a storage is given to another process
_QUEUE = 3  # where torch's loop has its way to the main process among its arguments
_FRAMES_UP = 3  # from a new storage to the function that wants it


class BufferReuse:
    """Of the main process."""

    def __init__(self) -> None:
        self._loop = WorkerLoop(worker._worker_loop)

    def install(self, patches: Patches) -> None:
        reason = why_not()
        if reason:
            raise NotImplementedError(reason)
        for owner, names in ((torch.UntypedStorage, (*_SHARING, "_new_shared")), (collate, ("collate_tensor_fn",))):
            for name in names:
                if not hasattr(owner, name):
                    raise NotImplementedError(f"this torch has no {owner.__name__}.{name}")
        if list(inspect.signature(worker._worker_loop).parameters).index("data_queue") != _QUEUE:
            raise NotImplementedError("this torch's worker loop takes other arguments")
        patches.replace(worker, "_worker_loop", self._loop)
        patches.around(_MultiProcessingDataLoaderIter, "__init__", "buffers.iterator", self._before, self._after)
        for name in _SHARING:
            patches.around(torch.UntypedStorage, name, "buffers.sharing", _retire, _nothing)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[1] if len(args) > 1 else kwargs["loader"]
        self._loop.depth = loader.prefetch_factor or 2

    def _after(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        iterator = args[0]
        finalizer = weakref.finalize(iterator, MIRRORS.forget, {process.pid for process in iterator._workers})
        finalizer.atexit = False


def _retire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if len(MIRRORS):
        MIRRORS.retire(args[0]._cdata)


def _nothing(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass


class WorkerLoop:
    """Torch's own loop with another way to the main process. Bears the name of torch's, so that whoever wraps it and is
    spawned finds that; spawned as it is, it finds its way here."""

    def __init__(self, original: Callable[..., None] | None = None, depth: int = 2) -> None:
        self.__name__ = self.__qualname__ = "_worker_loop"
        self.__module__ = worker.__name__
        self.depth = depth
        self._original = original

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return WorkerLoop, (None, self.depth)

    def __call__(self, *args: Any) -> None:
        original = self._original or worker._worker_loop
        queue = args[_QUEUE]
        try:
            queue = ParcelQueue(queue, equip(self.depth))
        except Exception:  # torch's own way is still there
            pass
        original(*args[:_QUEUE], queue, *args[_QUEUE + 1 :])


def equip(depth: int) -> Pool:
    """In a worker, for as long as it lives: torch's own collate function gets its memory from the pool."""
    patches = Patches(lambda seam, fault: None, lambda: False)
    new_shared = torch.UntypedStorage._new_shared
    pool = Pool(depth, new_shared)

    def lend(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if size and torch.device(device).type == "cpu" and (is_lending() or _is_collating()):
            storage = pool.lend(size)
            if storage is not None:
                return storage
        return new_shared(size, device=device)

    def abandon(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        buffer = pool.owner(args[0])
        if buffer is not None and buffer.ident != pool.sending:
            pool.abandon(buffer)

    for name in _SHARING:
        patches.around(torch.UntypedStorage, name, "buffers.sharing", abandon, _nothing)
    patches.replace(torch.UntypedStorage, "_new_shared", classmethod(lend))
    return pool


def _is_collating() -> bool:
    """Torch's own function is known by its frame: one of ours around it would show in the script's tracebacks."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES_UP):
        if frame.f_code is collate.collate_tensor_fn.__code__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
