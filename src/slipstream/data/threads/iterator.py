"""A loader's iterator whose batches are built by threads. Batches come in the script's order, and the script's own
generators advance as they do with torch's own iterator. If threads cannot build the batches, the remaining batches are
built in the script's thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _SingleProcessDataLoaderIter

from slipstream.data.threads.rng_streams import own_generators
from slipstream.data.threads.thread_pool import BatchTask, BatchThreads, WorkerSlot
from slipstream.data.workers.dataset_fingerprint import difference, look
from slipstream.seams.rng_state import RngState

HELD = 2  # batches per thread that are built or being built, unless the script sets prefetch_factor


class ThreadedIter(_BaseDataLoaderIter):
    """Calls `retire` with the loader and the reason when the loader must not get threads again. The loader is None if
    it no longer exists."""

    def __init__(
        self, loader: DataLoader[Any], slots: list[WorkerSlot], num_threads: int, retire: Callable[[Any, str], None]
    ) -> None:
        super().__init__(loader)
        self._loader = weakref.ref(loader)
        self._slots = slots
        self.num_threads = num_threads
        self._retire = retire
        self._is_plain = False
        self._dataset_fetcher = fetcher_of(loader, self._dataset, self._collate_fn)
        for number, slot in enumerate(slots):
            slot.stream.seed(int(self._base_seed), number)
        if self._num_workers:
            self._prepare_slots(loader.worker_init_fn)
            super()._reset(loader)  # with workers, torch asks the sampler for an iterator twice
        self.depth = HELD * num_threads
        if self._num_workers:
            self.depth = self._num_workers * (loader.prefetch_factor or HELD)
        self._begin()

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Starts the next epoch of a loader with persistent workers. Persistent workers build all batches that they
        were given and then continue their random numbers. The threads therefore finish their batches first."""
        self.batch_threads.finish()
        self.batch_threads.dismiss()
        super()._reset(loader, first_iter)
        self._begin()

    def _prepare_slots(self, prepare: Callable[[int], None] | None) -> None:
        """Calls the worker_init_fn for each slot. The function only sets seeds, because loaders with any other
        worker_init_fn keep their worker processes."""
        for number, slot in enumerate(self._slots if prepare is not None else ()):
            with slot.stream.drawn_from():
                prepare(number)  # type: ignore[misc]

    def _begin(self) -> None:
        self.batch_threads = BatchThreads(self._slots, self.num_threads, self._pinning())
        weakref.finalize(self, self.batch_threads.dismiss)
        self._pending: dict[int, Any] = {}  # indices of batches that the script has not received yet
        self._num_drawn = self._num_given = 0
        self._end: Exception | None = None  # what the sampler raised: StopIteration or an error
        self._is_started = False
        self._fingerprint = look(self._dataset, 1)
        if self._num_workers:
            self._draw(self.depth)

    def _pinning(self) -> Callable[[Any], Any] | None:
        if not self._pin_memory:
            return None
        pinned: Any = pin_memory
        device, index = self._pin_memory_device, _of_accelerator("current_device")()
        set_device = _of_accelerator("set_device")

        def pin(batch: Any) -> Any:
            set_device(index)  # each thread has its own current device
            return pinned(batch, device)

        return pin

    # --- indices -----------------------------------------------------------------------------------------------------

    def _draw(self, count: int) -> None:
        """Takes indices from the sampler. This runs in the script's own thread, because the sampler and its random
        numbers belong to the script."""
        for _ in range(count if self._end is None else 0):
            try:
                self._pending[self._num_drawn] = next(self._sampler_iter)
            except Exception as end:  # StopIteration, or an error that belongs to a later batch
                self._end = end.with_traceback(end.__traceback__.tb_next if end.__traceback__ else None)
                return
            self._num_drawn += 1

    def _next_index(self) -> Any:
        if not self._pending:
            self._draw(1)
        if not self._pending:
            raise self._take_end()
        number = next(iter(self._pending))
        self._num_given = number + 1
        return self._pending.pop(number)

    def _take_end(self) -> Exception:
        """Returns what the sampler raised and drops the reference, because the traceback refers to this object."""
        end, self._end = self._end, StopIteration()
        assert end is not None
        return end

    # --- batches -----------------------------------------------------------------------------------------------------

    def is_next_ready(self) -> bool:
        return not self._is_plain and self._is_started and self.batch_threads.is_ready(self._num_given)

    def num_ready(self) -> int:
        """Returns the number of batches that are built and that the script has not taken yet."""
        if self._is_plain or not self._is_started:
            return 0
        numbers = range(self._num_given, self._num_given + self.depth)
        return sum(self.batch_threads.is_ready(number) for number in numbers)

    def _next_data(self) -> Any:
        if not self._is_plain:
            self._check_dataset()
        if not self._is_plain and not self._is_started:
            self._start()
        if self._is_plain:
            return self._build_here()
        if not self._pending:
            self.batch_threads.dismiss()
            return self._next_index()  # raises
        if not self.batch_threads.wait_for(self._num_given, self._timeout):
            raise RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
        built = self.batch_threads.take(self._num_given)
        if built.fault:
            return self._build_again(built.fault)
        self._next_index()
        self._send(self._num_drawn, 1)
        return built.batch

    def _start(self) -> None:
        """Sends the first tasks and waits for the first batch. While the script's thread waits, only the data threads
        can draw from the script's generators. If they do, threads are given up."""
        self._is_started = True
        if not self._num_workers:
            self._draw(self.depth)
        before = RngState(own_generators())
        self._send(0, 0)
        if not self._pending or not self.batch_threads.wait_for(0, self._timeout):
            return
        library = before.moved_library()
        if library:
            self._give_up(f"the dataset draws from {library} in a way that cannot be separated by thread")
            self.batch_threads.join()
            before.restore()

    def _send(self, first: int, count: int) -> None:
        self._draw(count)
        for number in range(first, self._num_drawn):
            task = BatchTask(number, self._pending[number], torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            self.batch_threads.put(task)

    def _check_dataset(self) -> None:
        """Gives up threads if the script changes its dataset during the epoch. In a loader without workers, a change
        takes effect at once, but the threads' copies do not change."""
        try:
            changed = "" if self._num_workers else difference(self._fingerprint, look(self._dataset, 1))
        except Exception as fault:  # the dataset may refer to any object
            self._give_up(f"its dataset cannot be examined ({type(fault).__name__}: {fault})")
            return
        if changed:
            self._give_up(
                f"the script changes {changed} of the dataset while it is read, and the threads' copies do not change"
            )

    # --- without threads ---------------------------------------------------------------------------------------------

    def _build_here(self) -> Any:
        """Builds a batch with torch's own code for loaders without workers, so that the traceback of an exception has
        the same frames."""
        next_data: Any = _SingleProcessDataLoaderIter._next_data
        return next_data(self)

    def _build_again(self, fault: str) -> Any:
        """Builds a batch that failed in a thread. If the batch fails here too, the script receives its own
        exception."""
        try:
            batch = self._build_here()
        except BaseException:
            self._send(self._num_drawn, 1)
            raise
        self._give_up(f"a batch could not be built in a thread ({fault})")
        return batch

    def _give_up(self, why: str) -> None:
        self._is_plain = True
        self.batch_threads.dismiss()
        loader = self._loader()
        if loader is not None and loader._iterator is self:
            loader._iterator = None
        self._retire(loader, why)


def _of_accelerator(name: str) -> Callable[..., Any]:
    """Returns a function of torch.accelerator. In torch 2.6 the function has a shorter name."""
    accelerator: Any = torch.accelerator
    found: Callable[..., Any] = getattr(accelerator, f"{name}_index", None) or getattr(accelerator, f"{name}_idx")
    return found


def fetcher_of(loader: Any, dataset: Any, collate_fn: Any) -> Any:
    create: Any = _DatasetKind.create_fetcher
    return create(loader._dataset_kind, dataset, loader._auto_collation, collate_fn, loader.drop_last)
