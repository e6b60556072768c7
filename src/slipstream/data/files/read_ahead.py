"""Asks the system to read the files of upcoming batches before the batches are built.

Indices are taken early only from torch's own samplers, which draw all their random numbers at the first index anyway.
The indices of other samplers are known only when they are sent to a worker. Batches, their order and all random numbers
stay the same."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data._utils import worker
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _SingleProcessDataLoaderIter

from slipstream.data.files.index_to_path import BatchFiles, PathOf
from slipstream.data.files.readahead_thread import ReadaheadThread, most_bytes
from slipstream.data.threads.iterator import ThreadedIter
from slipstream.data.workers.worker_loop import DATA_QUEUE, INDEX_QUEUE, WorkerLoop, check_arguments
from slipstream.seams.patching import Patches

NUM_WATCHED = 2  # batches whose opened files are recorded, in each process that builds batches
_MOST_KNOWN = 8  # datasets whose paths are remembered
_STATE = "_slipstream_coming"  # attribute of an iterator
_receivers: weakref.WeakValueDictionary[int, UpcomingFiles] = weakref.WeakValueDictionary()  # receivers of notes by key
_keys = itertools.count()


class OpenedFiles:
    """Records the files that a thread opens between `begin` and `end`. Python audit hooks cannot be removed, so there
    is one hook per process. The hook does nothing while no thread is recorded. Files that are opened without Python (by
    OpenCV or a C++ reader) are not seen."""

    def __init__(self) -> None:
        self._is_hooked = False
        self._thread = 0  # the recorded thread; 0: none
        self._paths: list[str] = []

    def begin(self) -> None:
        if not self._is_hooked:
            sys.addaudithook(self._on_audit_event)
            self._is_hooked = True
        self._paths = []
        self._thread = threading.get_ident()

    def end(self) -> list[str]:
        self._thread = 0
        return list(dict.fromkeys(self._paths))

    def _on_audit_event(self, event: str, args: tuple[Any, ...]) -> None:
        if self._thread and event == "open" and self._thread == threading.get_ident():
            path = args[0]
            if isinstance(path, (str, bytes, os.PathLike)):
                self._paths.append(os.fsdecode(path))


_OPENED = OpenedFiles()


class UpcomingFiles:
    """The upcoming batches of one iterator and their files."""

    def __init__(self, loader: Any, depth: int, known: list[PathOf] | None, on_paths: Callable[..., None]) -> None:
        self.key = next(_keys)
        _receivers[self.key] = self
        self.adviser = ReadaheadThread(_num_in_flight(loader), most_bytes())
        self.begun: Any = None  # the indices of the batch that is being built
        self.is_watching = known is None
        self._is_useful = True
        self._depth = depth if draws_at_once(loader._index_sampler) else 0
        self._dataset = loader.dataset
        self._on_paths = on_paths
        self._notes: list[BatchFiles] = []
        self._num_notes = NUM_WATCHED * max(1, loader.num_workers)
        self._source: Any = None  # the iterator over indices; each epoch has a new one
        self._drawn: deque[Any] = deque()
        if known:
            self.adviser.paths = known
            self.adviser.start(self._dataset, [], lambda paths: None)

    def next_index(self, source: Any) -> Any:
        if source is not self._source:
            self._source = source
            self._drawn.clear()
            self.adviser.rewind()
        if not self._drawn:
            self._draw(source, 1)  # raises StopIteration each time at the end
        with contextlib.suppress(StopIteration):
            self._draw(source, self._depth + 1 - len(self._drawn))
        self.begun = self._drawn.popleft()
        self.adviser.begin()
        return self.begun

    def _draw(self, source: Any, count: int) -> None:
        for _ in range(count):
            index = next(source)
            self._drawn.append(index)
            if self._is_useful:
                self.adviser.announce(indices_of(index))

    def _set_paths(self, paths: list[PathOf]) -> None:
        self._is_useful = bool(paths)
        self._on_paths(paths)

    def add_note(self, note: BatchFiles) -> None:
        """Records which files a batch opened. After enough notes, the files of later batches are read ahead."""
        if not self.is_watching:
            return
        self._notes.append(note)
        if len(self._notes) >= self._num_notes:
            self.is_watching = False
            self.adviser.start(self._dataset, self._notes, self._set_paths)


def indices_of(index: Any) -> list[int]:
    if isinstance(index, torch.Tensor):
        index = index.tolist()
    return list(index) if isinstance(index, (list, tuple)) else [index]


def _num_in_flight(loader: Any) -> int:
    return int(loader.num_workers * (loader.prefetch_factor or 0))


def draws_at_once(sampler: Any) -> bool:
    """Whether indices may be taken early without changing anything that the script can observe."""
    if type(sampler) is BatchSampler:
        sampler = sampler.sampler
    if type(sampler) is RandomSampler:
        return sampler.generator is None and not sampler.replacement
    return type(sampler) in (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)


class ReadAhead:
    def __init__(self, depth: int, tell: Callable[[str], None], decline: Callable[[str], None]) -> None:
        self._depth = depth
        self._tell = tell
        self._decline = decline
        # Keyed by the id of the dataset. The dataset is kept alive so that its id is not given to another object.
        self._known: dict[int, tuple[Any, list[PathOf]]] = {}
        self._loop = NotingLoop(worker._worker_loop)
        self._wanted: set[int] = set()  # ids of datasets

    def want(self, dataset: Any) -> None:
        """Registers a dataset. Its files are read ahead in every loader that uses it."""
        self._wanted.add(id(dataset))

    def install(self, patches: Patches) -> None:
        check_arguments()
        patches.around(_BaseDataLoaderIter, "__init__", "read_ahead.iterator", self._before, _after)
        patches.replace(_BaseDataLoaderIter, "_next_index", _drawing(_BaseDataLoaderIter._next_index))
        patches.around(
            _SingleProcessDataLoaderIter, "_next_data", "read_ahead.batch", _before_batch, _after_batch, _drop
        )
        patches.replace(worker, "_worker_loop", self._loop)

    def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        iterator, loader = args[0], args[1] if len(args) > 1 else kwargs["loader"]
        self._loop.key = -1
        if loader._dataset_kind != _DatasetKind.Map or id(loader.dataset) not in self._wanted:
            return
        if isinstance(iterator, ThreadedIter):
            self._decline("threads build the batches here, and read_ahead cannot see their indices")
            return
        if not draws_at_once(loader._index_sampler) and not _num_in_flight(loader):
            self._decline(f"{type(loader._index_sampler).__name__} gives its order only one batch at a time")
            return
        dataset = loader.dataset  # the thread must not hold the loader, because a loader holds its iterator
        _, known = self._known.get(id(dataset), (None, None))
        if known == []:
            return
        upcoming = UpcomingFiles(loader, self._depth, known, lambda paths: self._found(dataset, paths))
        vars(iterator)[_STATE] = upcoming
        weakref.finalize(iterator, upcoming.adviser.end).atexit = False
        if upcoming.is_watching:
            self._loop.key = upcoming.key

    def _found(self, dataset: Any, paths: list[PathOf]) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        self._known[id(dataset)] = dataset, paths
        name = type(dataset).__name__
        if paths:
            self._tell(f"files of {name} are read {self._depth} batches ahead")
        else:
            self._decline(f"the index of a sample of {name} does not determine which files it reads")


def _after(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    pass


def _drawing(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def _next_index(iterator: Any) -> Any:
        upcoming: UpcomingFiles | None = vars(iterator).get(_STATE)
        return original(iterator) if upcoming is None else upcoming.next_index(iterator._sampler_iter)

    return _next_index


# --- the files that a batch opens in this process --------------------------------------------------------------------


def _before_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    upcoming: UpcomingFiles | None = vars(args[0]).get(_STATE)
    if upcoming is not None and upcoming.is_watching:
        _OPENED.begin()


def _after_batch(token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    upcoming: UpcomingFiles | None = vars(args[0]).get(_STATE)
    if upcoming is not None and upcoming.is_watching:
        upcoming.add_note((indices_of(upcoming.begun), _OPENED.end()))


def _drop(token: None) -> None:
    _OPENED.end()


# --- the files that a batch opens in a worker ------------------------------------------------------------------------


class NotingLoop(WorkerLoop):
    """Torch's own worker loop. With each of the first batches, it sends a note with the files that were opened for the
    batch. Only forked workers send notes."""

    key = -1  # of the UpcomingFiles that receives the notes; -1: none

    def __call__(self, *args: Any) -> None:
        if self.key >= 0:
            noting = FileNoting(args[INDEX_QUEUE], args[DATA_QUEUE], self.key)
            args = (*args[:INDEX_QUEUE], noting, noting.data, *args[DATA_QUEUE + 1 :])
        self._original(*args)


class FileNoting:
    """A worker's index queue that records opened files. The files that the worker opens after a `get` and before the
    next `put` belong to the batch whose indices the `get` returned."""

    def __init__(self, queue: Any, data: Any, key: int) -> None:
        self._queue = queue
        self.data = NoteQueue(data, key, self)
        self.indices: list[int] = []

    def get(self, timeout: float | None = None) -> Any:
        message = self._queue.get(timeout=timeout)
        if type(message) is tuple and self.data.num_left:
            self.indices = indices_of(message[1])
            _OPENED.begin()
        return message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class NoteQueue:
    def __init__(self, queue: Any, key: int, noting: FileNoting) -> None:
        self._queue = queue
        self._key = key
        self._noting = noting
        self.num_left = NUM_WATCHED

    def put(self, message: Any) -> None:
        if self.num_left and self._noting.indices:
            note = self._noting.indices, _OPENED.end()
            self.num_left -= 1
            self._noting.indices = []  # a message that does not answer a request for a batch carries no note
            message = _Noted(message, self._key, note)
        self._queue.put(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Noted:
    def __init__(self, message: Any, key: int, note: BatchFiles) -> None:
        self._contents = message, key, note

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return take_note, self._contents


def take_note(message: Any, key: int, note: BatchFiles) -> Any:
    """Delivers the note and returns torch's own message. The main process calls this function when it unpickles the
    message."""
    upcoming = _receivers.get(key)
    if upcoming is not None:
        upcoming.add_note(note)
    return message
