"""Installs reusable buffers between a loader's workers and the main process. The worker collates directly into the
buffers. Torch's own worker loop, queue and pinning stay as they are. If our code fails, batches are sent in torch's own
way."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils import collate, worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from slipstream.data.transport.batch_pickler import PayloadQueue
from slipstream.data.transport.buffer_mirror import MIRRORS
from slipstream.data.transport.buffer_pool import Pool, is_lending, most_buffers, why_not
from slipstream.data.transport.malloc import keep_freed
from slipstream.data.workers.worker_loop import DATA_QUEUE, WorkerLoop, check_arguments
from slipstream.seams.patching import Patches

_SHARING = ("_share_fd_cpu_", "_share_filename_cpu_")  # methods that share a storage with another process
_FRAMES_UP = 3  # frames from the creation of a storage up to the function that requests it


class BufferReuse:
    """The part in the main process. It installs the patches."""

    def __init__(self, tell: Callable[[str], None] = lambda note: None) -> None:
        self._tell = tell
        self._loop = ReusingLoop(worker._worker_loop)
        self._wanted: dict[int, str] = {}  # by the id of the dataset, because frameworks may build a loader again

    def want(self, dataset: Any, note: str = "") -> None:
        """Registers a dataset, so that loaders of this dataset use buffers. `note` is reported when a loader of this
        dataset starts workers."""
        self._wanted[id(dataset)] = note

    def install(self, patches: Patches) -> None:
        reason = why_not()
        if reason:
            raise NotImplementedError(reason)
        for owner, names in ((torch.UntypedStorage, (*_SHARING, "_new_shared")), (collate, ("collate_tensor_fn",))):
            for name in names:
                if not hasattr(owner, name):
                    raise NotImplementedError(f"this torch has no {owner.__name__}.{name}")
        check_arguments()
        patches.replace(worker, "_worker_loop", self._loop)
        patches.around(_MultiProcessingDataLoaderIter, "__init__", "buffer_reuse.iterator", self._before, self._after)
        for name in _SHARING:
            patches.around(torch.UntypedStorage, name, "buffer_reuse.sharing", _retire, _nothing)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        loader = args[1] if len(args) > 1 else kwargs["loader"]
        note = self._wanted.get(id(loader.dataset))
        self._loop.depth = (loader.prefetch_factor or 2) if note is not None else 0
        self._loop.most_buffers = most_buffers(loader.num_workers)
        if note is not None:
            self._tell(note)

    def _after(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        iterator = args[0]
        finalizer = weakref.finalize(iterator, MIRRORS.forget, {process.pid for process in iterator._workers})
        finalizer.atexit = False


def _retire(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if len(MIRRORS):
        MIRRORS.retire(args[0]._cdata)


def _nothing(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass


class ReusingLoop(WorkerLoop):
    """Torch's own worker loop with another queue to the main process. It works in spawned workers too."""

    def __init__(self, original: Callable[..., None], depth: int = 0, most_buffers: int = 0) -> None:
        super().__init__(original)
        self.depth = depth  # batches that a worker holds ready; 0: no buffers are used
        self.most_buffers = most_buffers

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _spawned, (self.depth, self.most_buffers)

    def __call__(self, *args: Any) -> None:
        queue = args[DATA_QUEUE]
        if self.depth:
            with contextlib.suppress(Exception):  # without the pool, torch's own queue is used
                queue = PayloadQueue(queue, install_pool(self.depth, self.most_buffers))
                keep_freed()
        self._original(*args[:DATA_QUEUE], queue, *args[DATA_QUEUE + 1 :])


def _spawned(depth: int, most_buffers: int) -> ReusingLoop:
    return ReusingLoop(worker._worker_loop, depth, most_buffers)


def install_pool(depth: int, most_buffers: int) -> Pool:
    """Creates a pool in a worker and returns it. Until the worker ends, torch's own collate function allocates from the
    pool."""
    patches = Patches(lambda seam, fault: None, lambda: False)
    new_shared: Any = torch.UntypedStorage._new_shared
    pool = Pool(depth, most_buffers, new_shared)

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
        patches.around(torch.UntypedStorage, name, "buffer_reuse.sharing", abandon, _nothing)
    patches.replace(torch.UntypedStorage, "_new_shared", classmethod(lend))
    return pool


def _is_collating() -> bool:
    """Whether torch's own collate function creates the storage. The function is recognised by its frame, because a
    wrapper around it would appear in the script's tracebacks."""
    frame = sys._getframe(2)
    for _ in range(_FRAMES_UP):
        if frame.f_code is collate.collate_tensor_fn.__code__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False
