"""Observes one training step under torch's profiler and hooks, then takes everything back. Costs that step a few
times its duration, changes none of its numbers, and where it cannot observe it says why and leaves the step alone."""

from __future__ import annotations

import gc
import os
import time
from contextlib import ExitStack
from typing import Any

import torch
from torch.autograd import profiler

from slipstream.records import Anatomy
from slipstream.runner.anatomy.denormals import share_of_denormals, take_sample
from slipstream.runner.anatomy.dissection import dissect
from slipstream.runner.anatomy.padding import share_of_padding
from slipstream.runner.anatomy.roster import list_modules
from slipstream.runner.anatomy.trace import build_trace
from slipstream.runner.anatomy.watch import Watch

MAX_EVENTS = 250_000  # a trace of more takes longer to read than anyone waits
MAX_PARAMETERS = 200
_SILENT = "9"  # above every level of the profiler's own log, which else writes to the script's stderr


class Probe:
    """`start` before the step and `stop` after it, both in the thread that runs the script. Good for one step.
    Where `stop` gives None, `reason` is a sentence that says why."""

    def __init__(self, models: list[torch.nn.Module], keep: str = "") -> None:
        """`keep`: a file for the profiler's own trace."""
        self.reason = ""
        self._keep = keep
        self._models = list(models)
        self._entries = list_modules(self._models)
        self._watch = Watch(self._entries, self._overflow)
        self._profile: Any = None
        self._events: Any = None
        self._undo = ExitStack()
        self._start_ns = 0

    def start(self) -> None:
        if is_profiler_in_use():
            self.reason = "the script uses torch's profiler itself, and only one can run at a time"
            return
        try:
            self._start_profile()
            self._undo.callback(self._end_profile)
            self._give_way_to_others()
            self._watch.start()
            self._undo.callback(self._watch.stop)
        except Exception as error:
            self._abandon(f"the step could not be observed: {type(error).__name__}: {error}")
        self._start_ns = time.perf_counter_ns()

    def stop(self) -> Anatomy | None:
        step_ms = (time.perf_counter_ns() - self._start_ns) / 1e6
        self._undo.close()
        if self.reason:
            self._forget()
            return None
        was_collecting = gc.isenabled()
        gc.disable()  # a hundred thousand nodes at once, none of them garbage: collecting would double the time
        try:
            return self._dissect(step_ms)
        except Exception as error:
            self.reason = f"the observed step could not be read: {type(error).__name__}: {error}"
            return None
        finally:
            self._forget()
            if was_collecting:
                gc.enable()

    def _dissect(self, step_ms: float) -> Anatomy | None:
        if self._events is None or not len(self._events):
            self.reason = "the profiler saw no operators in the step"
            return None
        if len(self._events) > MAX_EVENTS:
            self.reason = f"the step has {len(self._events)} profiler events, too many to take apart"
            return None
        padding_share = share_of_padding(self._watch.inputs)
        samples = self._watch.activations + self._watch.gradients + self._sample_parameters()
        denormal_share = share_of_denormals(samples)
        return dissect(build_trace(self._events), self._entries, step_ms, padding_share, denormal_share)

    def _sample_parameters(self) -> list[torch.Tensor]:
        parameters = [parameter for model in self._models for parameter in model.parameters()][:MAX_PARAMETERS]
        tensors: list[Any] = list(parameters)
        if not self._watch.gradients:
            tensors += [parameter.grad for parameter in parameters]
        samples = (take_sample(tensor) for tensor in tensors)
        return [sample for sample in samples if sample is not None]

    def _start_profile(self) -> None:
        level = os.environ.get("KINETO_LOG_LEVEL")
        os.environ["KINETO_LOG_LEVEL"] = _SILENT
        try:
            self._profile = profiler.profile(use_kineto=True, use_device=_device_in_use(), record_shapes=True)
            self._profile.__enter__()
        finally:
            if level is None:
                del os.environ["KINETO_LOG_LEVEL"]
            else:
                os.environ["KINETO_LOG_LEVEL"] = level

    def _end_profile(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)
            self._events = profile.kineto_results.events()
            if self._keep and not self.reason:
                profile.kineto_results.save(self._keep)

    def _give_way_to_others(self) -> None:
        """A profiler that the script starts within this step would find ours running and raise: ours ends first."""
        prepare: Any = profiler.profile._prepare_trace

        def give_way(other: Any) -> Any:
            self._abandon("the script started torch's profiler within the step")
            return prepare(other)

        profiler.profile._prepare_trace = give_way  # type: ignore[method-assign]

        def restore() -> None:
            profiler.profile._prepare_trace = prepare  # type: ignore[method-assign]

        self._undo.callback(restore)

    def _overflow(self) -> None:
        self._abandon("the step calls more modules than can be written down")

    def _abandon(self, reason: str) -> None:
        self.reason = reason
        self._undo.close()

    def _forget(self) -> None:
        """Lets go of the script's tensors and modules."""
        self._events = None
        self._models, self._entries = [], []
        self._watch = Watch([], self._overflow)


def is_profiler_in_use() -> bool:
    """A profiler that runs, or one that the script holds and may have prepared for a later step of its schedule."""
    if torch._C._autograd._profiler_enabled():
        return True
    # By type alone: isinstance would ask objects for their __class__, and some of them answer with code.
    held: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), profiler.profile)]
    return any(thing.entered and thing.kineto_results is None for thing in held)


def _device_in_use() -> str | None:
    """The accelerator, once the script has woken it: a profiler must not be the one to do so."""
    for name in ("cuda", "xpu"):
        module: Any = getattr(torch, name, None)
        if module is not None and module.is_initialized():
            return name
    return None
