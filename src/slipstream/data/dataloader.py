"""`slipstream.DataLoader`: torch's DataLoader that chooses how batches are built.

If the dataset consists of arrays, the loader indexes a whole batch at once. For other datasets it measures the first
batches and then decides whether worker processes would deliver batches faster. With `thread_workers`, threads of this
process build the batches, and nothing is measured.

Arguments that the caller gives are never changed. Batches come in torch's order. If the dataset draws random numbers
and workers are chosen, the workers draw other numbers than the script's process would. For iterable datasets the loader
chooses nothing.

`LoaderTrial` decides whether the consumer waits for batches and whether workers remove that wait. It measures a few
batches without workers and a few with workers, and always decides after the same number of batches. It is independent
of any loader and any clock."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import time
import weakref
from collections.abc import Iterator
from statistics import median
from typing import Any, Literal

import msgspec
import torch
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchLoader

from slipstream.data.samples.batch_fetch import can_gather, use_gather
from slipstream.data.threads.blockers import thread_obstacle
from slipstream.data.threads.install import Threads
from slipstream.data.workers.dataset_fingerprint import difference, unread
from slipstream.data.workers.loader_fingerprint import WorkerWatch, fingerprint_for_workers
from slipstream.data.workers.worker_blockers import obstacle
from slipstream.machine.environment import count_usable_cores
from slipstream.numbers import plural
from slipstream.seams.patching import Patches

_SIGNATURE = inspect.signature(TorchLoader.__init__)
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_SHARED = ("dataset", "collate_fn", "pin_memory", "pin_memory_device", "worker_init_fn", "in_order")
_log = logging.getLogger("slipstream")


class DataLoader(TorchLoader[Any]):
    """Takes the arguments of torch's DataLoader, and `thread_workers`: the number of threads that build batches.
    `choice` holds the decision and its reason."""

    def __init__(self, *args: Any, thread_workers: int = 0, **kwargs: Any) -> None:
        given = _SIGNATURE.bind(self, *args, **kwargs).arguments
        given.pop("self")
        is_free = "num_workers" not in given
        # Torch refuses these arguments without workers. They are kept for the workers that may be started later.
        held = {name: given.pop(name) for name in _OF_WORKERS if is_free and name in given}
        if "pin_memory" not in given:
            given["pin_memory"] = torch.cuda.is_available()
        super().__init__(**given)
        self._held = held
        self._worker_loader: Any = None  # the torch loader whose workers build our batches
        self._fingerprint: dict[str, Any] = {}  # of all that the workers read; taken when an epoch with workers began
        self._epoch: weakref.ref[_Epoch] | None = None
        self._trial = LoaderTrial(self._refusal(is_free), int(count_usable_cores()))
        self.thread_workers = 0
        if thread_workers:
            self._start_threads(thread_workers)
        self._is_gathered = self._trial.is_open and can_gather(self.dataset, self.collate_fn)
        if self._is_gathered:
            self._trial.close("gather", 0, "the dataset consists of arrays, so a whole batch can be indexed at once")
            self._log_choice()

    @property
    def choice(self) -> LoaderChoice:
        if self._trial.choice.how == "threads" and not _threads().has(self):
            self._trial.close("plain", 0, "the threads are no longer used; the log says why")
        return self._trial.choice

    def _start_threads(self, count: int) -> None:
        """Makes threads build the batches in place of worker processes. `num_workers` then determines the random
        numbers of the threads and how many batches are built ahead."""
        reason = thread_obstacle({name: getattr(self, name) for name in ("dataset", "num_workers", "worker_init_fn")})
        if not reason:
            _threads().give(self, count)
        self.thread_workers = 0 if reason else count
        self._trial.close("plain" if reason else "threads", 0, reason or f"thread_workers is {count}")
        self._log_choice()

    def _get_iterator(self) -> Any:
        plain: Any = super()._get_iterator
        return _threads().iterator_of(self, plain) if self.choice.how == "threads" else plain()

    def _refusal(self, is_free: bool) -> str:
        """Returns the reason why the loader makes no choice, or "" if it makes one."""
        if not is_free:
            return "num_workers is given"
        if isinstance(self.dataset, IterableDataset):
            return "an iterable dataset is read by one process"
        sampler = self.batch_sampler
        own = type(sampler) is BatchSampler and type(sampler.sampler).__module__ == "torch.utils.data.sampler"
        return "" if own else "the sampler is not torch's own, so its order may depend on when indices are requested"

    def _log_choice(self) -> None:
        choice = self.choice
        how = plural(choice.num_workers, "worker") if choice.num_workers else choice.how
        _log.info("DataLoader: %s, because %s", how, choice.reason)

    # --- an epoch ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        plain: Any = super().__iter__()  # draws the same random numbers as torch's loader
        if self.num_workers:
            return plain
        if self._is_gathered:
            use_gather(plain, self._give_up_gathering)
            return plain
        if not self._trial.is_open and not self.choice.num_workers:
            self._worker_loader = None
            return plain
        before = self._epoch() if self._epoch is not None else None
        if before is not None and not before.is_over:
            return plain  # another iterator is still being read, and the workers serve one iterator at a time
        epoch = _Epoch(self, plain)
        self._epoch = weakref.ref(epoch)
        return epoch

    def _give_up_gathering(self, why: str) -> None:
        self._is_gathered = False
        self._trial.close("plain", 0, why)
        self._log_choice()

    def _start_workers(self, plain: Any) -> Any:
        """Returns an iterator over the remaining batches of `plain`, which workers build. Returns None if workers
        cannot build them."""
        now = fingerprint_for_workers(self, self._fingerprint)
        if self._worker_loader is not None and (difference(self._fingerprint, now) or unread(now)):
            self._worker_loader = None  # the workers' copies of the dataset no longer equal the script's
        self._fingerprint = now
        if self._worker_loader is None:
            arguments = self._arguments(self.choice.num_workers)
            reason = obstacle(arguments, self.choice.num_workers)
            if reason:
                self._trial.close("plain", 0, reason)
                self._log_choice()
                return None
            self._worker_loader = TorchLoader(**arguments)
        self._worker_loader.batch_sampler.rest = plain._sampler_iter
        # With this seed the workers draw the same numbers in every run, and the script's generator is not used again.
        self._worker_loader.generator.manual_seed(plain._base_seed)
        return iter(self._worker_loader)

    def _arguments(self, num_workers: int) -> dict[str, Any]:
        arguments = {name: getattr(self, name) for name in _SHARED if name in _SIGNATURE.parameters}
        own = {"batch_sampler": _Rest(), "generator": torch.Generator(), "num_workers": num_workers}
        return {**arguments, **own, "persistent_workers": True, **self._held}


class _Rest:
    """A batch sampler that yields the index batches that the plain iterator has not requested yet."""

    rest: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.rest


class _Epoch:
    """The iterator of one epoch. It builds batches in this process first. When workers are chosen, it takes the batches
    from the workers."""

    def __init__(self, loader: DataLoader, plain: Any) -> None:
        self._loader = loader
        self._plain = plain
        self._source: Any = None  # an iterator over the workers' batches
        self._returned_s = math.nan  # when the last batch was returned
        self._watch: WorkerWatch | None = None  # begins when the workers start
        self._num_left = len(loader)
        self.is_over = False

    def __iter__(self) -> _Epoch:
        return self

    def __len__(self) -> int:
        return len(self._plain)

    def __next__(self) -> Any:
        loader, trial = self._loader, self._loader._trial
        asked_s = time.perf_counter()
        if self._source is None and trial.wants_workers(self._num_left):
            self._source = loader._start_workers(self._plain)
            self._watch = WorkerWatch(loader.dataset)
        elif self._source is not None:
            self._check_dataset()
        try:
            batch = next(self._plain if self._source is None else self._source)
        except BaseException:
            self.is_over = True
            raise
        now_s = time.perf_counter()
        self._num_left -= 1
        if trial.note(now_s - asked_s, asked_s - self._returned_s, self._source is not None):
            loader._log_choice()
        self._returned_s = now_s
        return batch

    def _check_dataset(self) -> None:
        """Gives up workers if the script changes its dataset during the epoch, because workers do not see the
        change."""
        if self._watch is not None and (changed := self._watch.changed(self._loader.dataset)):
            self._watch = WorkerWatch(self._loader.dataset)
            self._loader._trial.close("plain", 0, f"the script changes {changed} of the dataset while it is read")
            self._loader._log_choice()


@functools.cache
def _threads() -> Threads:
    """Returns the threads of all loaders of this process. At the first epoch with threads, the functions that draw
    random numbers are patched until the process ends. Each thread then draws its own numbers."""
    threads = Threads(lambda why: _log.info("DataLoader: %s", why))
    threads.prepare(_patches())
    return threads


@functools.cache
def _patches() -> Patches:
    return Patches(lambda name, fault: _log.warning("DataLoader: %s: %r", name, fault), lambda: False)


How = Literal["plain", "gather", "workers", "threads", "undecided"]
LOOKED_AT = 8  # measured batches, after the warm-up batches
SETTLING = 2  # warm-up batches
LEAST_SHARE = 0.1  # minimum share of an iteration that building the batch takes; below this share, workers gain little
LEAST_LEFT = 4  # minimum of remaining batches per worker, because starting a worker takes as long as a few batches
BETTER = 0.95  # workers are kept only if an iteration takes at most this share of its time without workers


class LoaderChoice(msgspec.Struct, frozen=True):
    how: How
    num_workers: int = 0
    reason: str = ""
    load_ms: float = 0.0  # time to build a batch in the script's process
    step_ms: float = 0.0  # time that the script spent between two batches


class LoaderTrial:
    """Decides from measured times whether a loader gets workers, and how many. `choice` is the current decision."""

    def __init__(self, refusal: str, num_cores: int) -> None:
        self._num_cores = num_cores
        self._loads: list[float] = []
        self._steps: list[float] = []
        self._iterations: list[float] = []  # with workers
        self._plain_s = math.inf
        self.choice = LoaderChoice("plain" if refusal else "undecided", 0, refusal)

    @property
    def is_open(self) -> bool:
        return self.choice.how == "undecided"

    def close(self, how: How, num_workers: int, reason: str) -> None:
        self.choice = LoaderChoice(how, num_workers, reason, self.choice.load_ms, self.choice.step_ms)

    def wants_workers(self, num_left: int) -> bool:
        return self.choice.how == "workers" and num_left >= LEAST_LEFT * self.choice.num_workers

    def note(self, load_s: float, step_s: float, has_workers: bool) -> bool:
        """Records one batch: the time that it took, and the time since the previous batch was returned (NaN for the
        first batch). Returns whether the choice changed."""
        if math.isnan(step_s):
            return False
        if has_workers:
            return self._note_iteration(load_s + step_s)
        if not self.is_open:
            return False
        self._loads.append(load_s)
        self._steps.append(step_s)
        return len(self._loads) == SETTLING + LOOKED_AT and self._decide()

    def _decide(self) -> bool:
        load_s, step_s = median(self._loads[SETTLING:]), median(self._steps[SETTLING:])
        self._plain_s = load_s + step_s
        count, reason = num_wanted(load_s, step_s, self._num_cores)
        self.choice = LoaderChoice("workers" if count else "plain", count, reason, load_s * 1e3, step_s * 1e3)
        return True

    def _note_iteration(self, iteration_s: float) -> bool:
        self._iterations.append(iteration_s)
        # The first batches are not representative: they wait for worker processes to start or come from full queues.
        settling = 4 * self.choice.num_workers
        if self.choice.how != "workers" or len(self._iterations) != settling + 2 * LOOKED_AT:
            return False
        mean_s = sum(self._iterations[settling:]) / (2 * LOOKED_AT)
        if mean_s <= BETTER * self._plain_s:
            return False
        reason = f"an iteration took {mean_s * 1e3:.3g} ms with workers and {self._plain_s * 1e3:.3g} ms without them"
        self.close("plain", 0, reason)
        return True


def num_wanted(load_s: float, step_s: float, num_cores: int) -> tuple[int, str]:
    """Returns how many workers build batches as fast as the script uses them, and the reason. The number is at most one
    per core. It is 0 if workers would gain little."""
    share = load_s / (load_s + step_s) if load_s + step_s > 0 else 0.0
    reason = f"building a batch takes {load_s * 1e3:.3g} ms and the step {step_s * 1e3:.3g} ms"
    if share < LEAST_SHARE:
        return 0, reason
    needed = math.ceil(load_s / step_s) if step_s > 0 else num_cores
    return max(1, min(needed, num_cores)), reason
