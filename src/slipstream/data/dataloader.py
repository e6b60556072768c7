"""`slipstream.DataLoader`: torch's DataLoader that finds out in its first batches whether worker processes, or batches
indexed whole, would feed its consumer faster. What is given is kept. Batches come in torch's order; where the dataset
draws random numbers and workers are chosen, they are drawn anew. Refuses to choose for streams.

Whether a loader's consumer waits for it, and whether workers end that: counted over a few batches of each, decided
after a number of batches that is always the same. Knows no loader and no clock."""

from __future__ import annotations

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
from slipstream.data.workers.dataset_fingerprint import difference, look, look_closely, unread
from slipstream.data.workers.worker_blockers import obstacle
from slipstream.machine.environment import count_usable_cores

_SIGNATURE = inspect.signature(TorchLoader.__init__)
_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
_SHARED = ("dataset", "collate_fn", "pin_memory", "pin_memory_device", "worker_init_fn", "in_order")
_log = logging.getLogger("slipstream")


class DataLoader(TorchLoader[Any]):
    """Takes what torch's takes. `choice` says what was chosen, and why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _SIGNATURE.bind(self, *args, **kwargs).arguments
        given.pop("self")
        is_free = "num_workers" not in given
        # Torch refuses these without workers: they are for the workers that may come
        held = {name: given.pop(name) for name in _OF_WORKERS if is_free and name in given}
        if "pin_memory" not in given:
            given["pin_memory"] = torch.cuda.is_available()
        super().__init__(**given)
        self._held = held
        self._batch_threads: Any = None  # the loader whose workers build our batches
        self._fingerprint: dict[str, Any] = {}  # the dataset as they know it
        self._serving: weakref.ref[_Serving] | None = None
        self._trial = LoaderTrial(self._refusal(is_free), int(count_usable_cores()))
        self._is_gathered = self._trial.is_open and can_gather(self.dataset, self.collate_fn)
        if self._is_gathered:
            self._trial.close("gather", 0, "the dataset is arrays: a batch is indexed at once")
            self._say()

    @property
    def choice(self) -> LoaderChoice:
        return self._trial.choice

    def _refusal(self, is_free: bool) -> str:
        """Why there is nothing to choose; "" if there is."""
        if not is_free:
            return "num_workers is given"
        if isinstance(self.dataset, IterableDataset):
            return "a stream is read by one process"
        sampler = self.batch_sampler
        own = type(sampler) is BatchSampler and type(sampler.sampler).__module__ == "torch.utils.data.sampler"
        return "" if own else "the order is not torch's own, and may depend on when it is asked for"

    def _say(self) -> None:
        choice = self.choice
        how = f"{choice.num_workers} workers" if choice.num_workers else choice.how
        _log.info("DataLoader: %s, because %s", how, choice.reason)

    # --- an epoch ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Any:
        plain: Any = super().__iter__()  # draws what torch's draws
        if self.num_workers:
            return plain
        if self._is_gathered:
            use_gather(plain, self._give_up_gathering)
            return plain
        if not self._trial.is_open and not self.choice.num_workers:
            self._batch_threads = None
            return plain
        before = self._serving() if self._serving is not None else None
        if before is not None and not before.is_over:
            return plain  # somebody is still reading, and workers serve one at a time
        serving = _Serving(self, plain)
        self._serving = weakref.ref(serving)
        return serving

    def _give_up_gathering(self, why: str) -> None:
        self._is_gathered = False
        self._trial.close("plain", 0, why)
        self._say()

    def _hire(self, plain: Any) -> Any:
        """An iterator over the rest of the plain one's batches, built by workers; None where they cannot be."""
        now = look_closely(self.dataset, before=self._fingerprint)
        if self._batch_threads is not None and (difference(self._fingerprint, now) or unread(now)):
            self._batch_threads = None  # their datasets are not the script's any more
        self._fingerprint = now
        if self._batch_threads is None:
            arguments = self._arguments(self.choice.num_workers)
            reason = obstacle(arguments, self.choice.num_workers)
            if reason:
                self._trial.close("plain", 0, reason)
                self._say()
                return None
            self._batch_threads = TorchLoader(**arguments)
        self._batch_threads.batch_sampler.rest = plain._sampler_iter
        self._batch_threads.generator.manual_seed(
            plain._base_seed
        )  # workers draw alike in two runs, and we draw nothing more
        return iter(self._batch_threads)

    def _arguments(self, num_workers: int) -> dict[str, Any]:
        arguments = {name: getattr(self, name) for name in _SHARED if name in _SIGNATURE.parameters}
        own = {"batch_sampler": _Rest(), "generator": torch.Generator(), "num_workers": num_workers}
        return {**arguments, **own, "persistent_workers": True, **self._held}


class _Rest:
    """Stands for a batch sampler: the index batches that the plain iterator has not asked for."""

    rest: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        return self.rest


class _Serving:
    """One epoch: plain at first, from workers once they are chosen."""

    def __init__(self, loader: DataLoader, plain: Any) -> None:
        self._loader = loader
        self._plain = plain
        self._source: Any = None  # an iterator over workers' batches
        self._served_s = math.nan
        self._fingerprint: dict[str, Any] = {}
        self._num_left = len(loader)
        self.is_over = False

    def __iter__(self) -> _Serving:
        return self

    def __len__(self) -> int:
        return len(self._plain)

    def __next__(self) -> Any:
        loader, trial = self._loader, self._loader._trial
        asked_s = time.perf_counter()
        if self._source is None and trial.wants_workers(self._num_left):
            self._source = loader._hire(self._plain)
            self._fingerprint = look(loader.dataset, 1)
        elif self._source is not None:
            self._watch()
        try:
            batch = next(self._plain if self._source is None else self._source)
        except BaseException:
            self.is_over = True
            raise
        now_s = time.perf_counter()
        self._num_left -= 1
        if trial.note(now_s - asked_s, asked_s - self._served_s, self._source is not None):
            loader._say()
        self._served_s = now_s
        return batch

    def _watch(self) -> None:
        """Workers do not see what the script does to its dataset meanwhile."""
        if changed := difference(self._fingerprint, look(self._loader.dataset, 1)):
            self._fingerprint = look(self._loader.dataset, 1)
            self._loader._trial.close("plain", 0, f"the script changes {changed} of the dataset while it is read")
            self._loader._say()


How = Literal["plain", "gather", "workers", "undecided"]
LOOKED_AT = 8  # batches, after the first two
SETTLING = 2
LEAST_SHARE = 0.1  # of a trip round the loop that is waiting: below that workers have nothing to give
LEAST_LEFT = 4  # batches for each worker: starting one takes as long as building a few
BETTER = 0.95  # of the plain trip: workers that are not this quick are sent away


class LoaderChoice(msgspec.Struct, frozen=True):
    how: How
    num_workers: int = 0
    reason: str = ""
    load_ms: float = 0.0  # a batch, built in the script's process
    step_ms: float = 0.0  # what the script did between two batches


class LoaderTrial:
    def __init__(self, refusal: str, num_cores: int) -> None:
        self._num_cores = num_cores
        self._loads: list[float] = []
        self._steps: list[float] = []
        self._trips: list[float] = []  # with workers
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
        """One batch: how long it took, and what passed since the one before (NaN: there was none). True: the choice is
        another now."""
        if math.isnan(step_s):
            return False
        if has_workers:
            return self._note_trip(load_s + step_s)
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

    def _note_trip(self, trip_s: float) -> bool:
        """The first batches come out of full buffers, or wait for processes to start."""
        self._trips.append(trip_s)
        settling = 4 * self.choice.num_workers
        if self.choice.how != "workers" or len(self._trips) != settling + 2 * LOOKED_AT:
            return False
        mean_s = sum(self._trips[settling:]) / (2 * LOOKED_AT)
        if mean_s <= BETTER * self._plain_s:
            return False
        reason = (
            f"workers gave a batch every {mean_s * 1e3:.3g} ms, and without them it was {self._plain_s * 1e3:.3g} ms"
        )
        self.close("plain", 0, reason)
        return True


def num_wanted(load_s: float, step_s: float, num_cores: int) -> tuple[int, str]:
    """As many as hide the load behind the step, within the cores; and why."""
    share = load_s / (load_s + step_s) if load_s + step_s > 0 else 0.0
    told = f"a batch takes {load_s * 1e3:.3g} ms and the step {step_s * 1e3:.3g} ms"
    if share < LEAST_SHARE:
        return 0, told
    needed = math.ceil(load_s / step_s) if step_s > 0 else num_cores
    return max(1, min(needed, num_cores)), told
