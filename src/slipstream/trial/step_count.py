"""Counts steps and samples for `run`. It hooks batches and updates (and backward passes until the first update). No
other seams are installed."""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.seams.batches import count_samples
from slipstream.seams.patching import Passage, Patches

_MOST_TIMES: Final = 50_000
_PAUSE: Final = 10  # a gap of more than this many median steps is validation, saving or worker start-up


class StepCount:
    """Counts the steps and samples of one process."""

    def __init__(self) -> None:
        self.samples = 0
        self._update_ns = array("q")  # times of the first updates
        self._num_updates = 0
        self._spans: dict[int, list[int]] = {}  # by optimizer: index of its first update, of its last, and their number
        self._num_backwards = 0
        self._num_batches = 0
        self._iterator = 0
        self._pending = 0  # samples of the loader used last that no update has followed yet

    def install(self, patches: Patches, early: Patches) -> None:
        """`early` holds patches that only scripts without an optimizer need. They are undone at the first update."""
        front = functools.partial(self._shorten_next, patches=patches)
        patches.around(_BaseDataLoaderIter, "__next__", "step_count.batch", None, self._after_batch, front=front)
        hook = patches.guard("step_count.update", self._after_update)
        patches.on_close(register_optimizer_step_post_hook(hook).remove)
        early.around(torch.autograd, "backward", "step_count.backward", None, self._after_backward)
        self._early: Patches | None = early

    @property
    def num_steps(self) -> int:
        """The number of updates of the optimizer that steps most rarely, among those in use at the same time.
        Optimizers that are used one after the other, such as a learning-rate finder's and the training's, are added up.
        Without an optimizer: the number of backward passes. Without those: the number of batches."""
        steps = fewest = end = 0
        for first, last, count in sorted(self._spans.values()):
            steps, fewest = (steps + fewest, count) if first > end else (steps, min(fewest, count))
            end = max(end, last)
        return steps + fewest or self._num_backwards or self._num_batches

    def step_s(self) -> float | None:
        """The mean time from update to update, without pauses such as validation. None if there are too few updates."""
        gaps = sorted(late - early for early, late in pairwise(self._update_ns))
        if len(gaps) < 2:
            return None
        usual = [gap for gap in gaps if gap <= _PAUSE * gaps[len(gaps) // 2]]
        return sum(usual) / len(usual) * self._num_updates / self.num_steps / 1e9

    def count_samples(self) -> int:
        return self.samples if self._num_updates else self.samples + self._pending

    def _after_batch(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        iterator = id(args[0])
        if iterator != self._iterator:
            # Another loader, perhaps for validation. Its samples count only if an update follows.
            self._iterator = iterator
            if self._num_updates or self._num_backwards:
                self._pending = 0
        self._pending += count_samples(result)
        self._num_batches += 1

    def _shorten_next(self, passage: Passage, patches: Patches) -> Callable[[Any], Any]:
        """A faster patch for a further batch of the iterator that was used last. It needs one Python frame: the
        training evicts slipstream's code from the CPU caches between two batches, so that each frame costs cache
        misses."""
        original, full_path = passage.original, passage.function
        count = patches.register("step_count.batch.samples", count_samples)

        def passing(iterator: Any) -> Any:
            if id(iterator) != self._iterator:
                return full_path(iterator)
            result = original(iterator)
            try:
                self._pending += count(result)
                self._num_batches += 1
            except Exception as fault:
                self._iterator = -1  # matches no iterator: all further calls take the full path, which is disabled
                passage.step_aside(fault)
            return result

        return passing

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._num_updates += 1
        span = self._spans.setdefault(id(optimizer), [self._num_updates, 0, 0])
        span[1] = self._num_updates
        span[2] += 1
        if len(self._update_ns) < _MOST_TIMES:
            self._update_ns.append(time.perf_counter_ns())
        self.samples += self._pending
        self._pending = 0
        if self._early is not None:
            self._early.close()
            self._early = None

    def _after_backward(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._num_backwards += 1
