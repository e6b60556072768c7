"""Counts the steps and samples of one process through hooks of its own: in a race, where the end of a step may pause
the script, and in `run`, where no other seams are installed."""

from __future__ import annotations

import functools
import time
import weakref
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.observe.step_counter import Leader, StepCounter
from slipstream.seams.batches import count_samples
from slipstream.seams.patching import Passage, Patches, without_stack_level
from slipstream.trial.recipe_protocol import AppliedRecipe

_MOST_TIMES: Final = 50_000
_PAUSE: Final = 10  # a gap of more than this many median gaps counts as validation, saving or start-up of workers


class HookedStepCounter(StepCounter):
    def __init__(
        self,
        kinds: tuple[str, ...] = ("optimizer", "backward"),
        leader: Leader = "rarest",
        on_step: Callable[[], None] | None = None,
    ) -> None:
        """`on_step` is called at the end of each step. It may pause or end the script."""
        super().__init__(kinds, leader)
        self._kinds = kinds
        self._on_step = on_step
        self._update_ns = array("q")  # times of the first updates
        self._num_updates = 0
        self._spans: dict[int, list[int]] = {}  # by optimizer: index of its first update, of its last, and their number
        self._alive: dict[int, weakref.ref[Any]] = {}  # optimizers
        self._num_batches = 0
        self._backward_depth = 0
        self._early: Patches | None = None

    def install(self, patches: Patches, context: AppliedRecipe | None = None) -> None:
        """`context` is needed to count calls of a module."""
        can_shorten = "input" not in self._kinds
        front = functools.partial(self._shorten_next, patches=patches) if can_shorten else None
        patches.around(_BaseDataLoaderIter, "__next__", "step_count.batch", None, self._after_batch, front=front)
        if "optimizer" in self._kinds:
            hook = patches.guard("step_count.update", self._after_update)
            patches.on_close(register_optimizer_step_post_hook(hook).remove)
        if "backward" in self._kinds:
            holder = patches
            if "optimizer" in self._kinds:  # then this patch is not needed after the first update
                holder = self._early = Patches(patches.complain, patches.is_compiling)
                patches.on_close(holder.close)
            holder.around(
                torch.autograd,
                "backward",
                "step_count.backward",
                self._before_backward,
                self._after_backward,
                self._abandon_backward,
            )
        if "forward" in self._kinds:
            assert context is not None
            self._count_calls(context)

    @property
    def total_steps(self) -> int:
        """The number of updates of the optimizer that steps most rarely, among the optimizers in use at the same time.
        Numbers of optimizers that are used one after the other, such as a learning-rate finder's and the training's,
        are added up. Without an optimizer this is the number of backward passes, and without backward passes the number
        of batches. `num_steps` may differ, because it is counted before the rarest optimizer is known."""
        steps = fewest = end = 0
        for first, last, count in sorted(self._spans.values()):
            steps, fewest = (steps + fewest, count) if first > end else (steps, min(fewest, count))
            end = max(end, last)
        return steps + fewest or self.num_steps or self._num_batches

    def step_s(self) -> float | None:
        """Returns the mean time of a step, without pauses such as validation. Returns None if there are too few
        updates."""
        gaps = sorted(late - early for early, late in pairwise(self._update_ns))
        if len(gaps) < 2:
            return None
        usual = [gap for gap in gaps if gap <= _PAUSE * gaps[len(gaps) // 2]]
        return sum(usual) / len(usual) * self._num_updates / self.total_steps / 1e9

    def count_samples(self) -> int:
        return self.samples if self.num_steps else self._pending_samples

    def _see(self, kind: str, ident: int, samples: int = 0) -> None:
        if self.see(kind, ident, samples) and self._on_step is not None:
            self._on_step()

    def _after_batch(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._num_batches += 1
        self._see("input", id(args[0]), count_samples(result))

    @without_stack_level
    def _shorten_next(self, passage: Passage, patches: Patches) -> Callable[[Any], Any]:
        """Returns a faster patch for further batches of the iterator that was used last. The patch needs only one
        Python frame. Between two batches the training evicts slipstream's code from the CPU caches, so each frame costs
        cache misses."""
        original, full_path = passage.original, passage.function
        count = patches.register("step_count.batch.samples", count_samples)

        def passing(iterator: Any) -> Any:
            if id(iterator) != self._last_loader:
                return full_path(iterator)
            result = original(iterator)
            try:
                self._pending_samples += count(result)
                self._num_batches += 1
            except Exception as fault:
                self._last_loader = -1  # matches no iterator: all further calls take the full path, which is disabled
                passage.step_aside(fault)
            return result

        return passing

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ident = id(optimizer)
        if ident not in self._alive:  # another optimizer may get the same id later
            self._alive[ident] = weakref.ref(optimizer, lambda _: self._on_deleted(ident))
        self._num_updates += 1
        span = self._spans.setdefault(ident, [self._num_updates, 0, 0])
        span[1] = self._num_updates
        span[2] += 1
        if len(self._update_ns) < _MOST_TIMES:
            self._update_ns.append(time.perf_counter_ns())
        if self._early is not None:
            self._early.close()
            self._early = None
        self._see("optimizer", ident)

    def _on_deleted(self, optimizer: int) -> None:
        del self._alive[optimizer]
        self.forget(optimizer)

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._backward_depth += 1

    def _abandon_backward(self, token: None) -> None:
        self._backward_depth -= 1

    def _after_backward(self, token: None, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._backward_depth -= 1
        if not self._backward_depth:  # nested calls belong to checkpointed parts
            self._see("backward", 0)

    def _count_calls(self, context: AppliedRecipe) -> None:
        """Counts the calls of the first module that the script calls."""
        is_taken = False

        def counted(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self._see("forward", 0)
            return result

        def on_model(module: Any) -> None:
            nonlocal is_taken
            if not is_taken:
                is_taken = True
                context.wrap_call(module, counted)

        context.on_model(on_model)
