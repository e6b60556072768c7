"""`slipstream.DataLoader`: torch's DataLoader that finds out in its first batches whether worker processes, or batches
indexed whole, would feed its consumer faster. What is given is kept. Batches come in torch's order; where the dataset
draws random numbers and workers are chosen, they are drawn anew. Refuses to choose for streams."""

from __future__ import annotations

import inspect
import logging
import math
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchLoader

from slipstream.data.attributes import difference, look, look_closely, unread
from slipstream.data.batched import can_gather, use_gather
from slipstream.data.obstacles import obstacle
from slipstream.data.trial import LoaderChoice, Trial
from slipstream.runner.machine import count_usable_cores

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
        self._crew: Any = None  # the loader whose workers build our batches
        self._portrait: dict[str, Any] = {}  # the dataset as they know it
        self._serving: weakref.ref[_Serving] | None = None
        self._trial = Trial(self._refusal(is_free), int(count_usable_cores()))
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
            self._crew = None
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
        now = look_closely(self.dataset, before=self._portrait)
        if self._crew is not None and (difference(self._portrait, now) or unread(now)):
            self._crew = None  # their datasets are not the script's any more
        self._portrait = now
        if self._crew is None:
            arguments = self._arguments(self.choice.num_workers)
            reason = obstacle(arguments, self.choice.num_workers)
            if reason:
                self._trial.close("plain", 0, reason)
                self._say()
                return None
            self._crew = TorchLoader(**arguments)
        self._crew.batch_sampler.rest = plain._sampler_iter
        self._crew.generator.manual_seed(plain._base_seed)  # workers draw alike in two runs, and we draw nothing more
        return iter(self._crew)

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
        self._portrait: dict[str, Any] = {}
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
            self._portrait = look(loader.dataset, 1)
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
        if changed := difference(self._portrait, look(self._loader.dataset, 1)):
            self._portrait = look(self._loader.dataset, 1)
            self._loader._trial.close("plain", 0, f"the script changes {changed} of the dataset while it is read")
            self._loader._say()
