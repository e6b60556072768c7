"""Observes one training step under torch's profiler with hooks, and then removes both. The observed step takes a few
times as long as an ordinary one, and its numbers do not change. If the step cannot be observed, the probe gives a
reason and no result."""

from __future__ import annotations

import gc
import time
from contextlib import ExitStack
from typing import Any

import torch

from slipstream.observe.anatomy.denormals import share_of_denormals, take_sample
from slipstream.observe.anatomy.dissection import dissect
from slipstream.observe.anatomy.hooks import StepHooks
from slipstream.observe.anatomy.modules import list_modules
from slipstream.observe.anatomy.padding import share_of_padding
from slipstream.observe.anatomy.quiet_profiler import IN_USE, QuietProfile, device_in_use, is_profiler_in_use
from slipstream.observe.anatomy.trace import build_trace
from slipstream.records import Anatomy

MAX_EVENTS = 250_000  # reading a larger trace would take too long
MAX_PARAMETERS = 200


class Probe:
    """Observes one step. Call `start` before the step and `stop` after it, both in the thread that runs the script. If
    `stop` returns None, `reason` says why."""

    def __init__(self, models: list[torch.nn.Module]) -> None:
        self.reason = ""
        self._models = list(models)
        self._entries = list_modules(self._models)
        self._hooks = StepHooks(self._entries, self._overflow)
        self._profile: QuietProfile | None = None
        self._events: Any = None
        self._undo = ExitStack()
        self._start_ns = 0

    def start(self) -> None:
        if is_profiler_in_use():
            self.reason = IN_USE
            return
        try:
            self._profile = QuietProfile(device_in_use(), record_shapes=True)
            self._profile.start()
            self._undo.callback(self._end_profile)
            self._profile.give_way(self._abandon)
            self._hooks.start()
            self._undo.callback(self._hooks.stop)
        except Exception as error:
            self._abandon(f"the step could not be observed: {type(error).__name__}: {error}")
        self._start_ns = time.perf_counter_ns()

    def stop(self, is_whole: bool = True) -> Anatomy | None:
        """Ends the observation and returns the anatomy. `is_whole` says whether the step ran to its end."""
        step_ms = (time.perf_counter_ns() - self._start_ns) / 1e6
        self._undo.close()
        if self.reason:
            self._forget()
            return None
        was_collecting = gc.isenabled()
        gc.disable()  # a trace has about 100,000 nodes and none is garbage: collection would double the time
        try:
            return self._dissect(step_ms, is_whole)
        except Exception as error:
            self.reason = f"the observed step could not be read: {type(error).__name__}: {error}"
            return None
        finally:
            self._forget()
            if was_collecting:
                gc.enable()

    def drop(self, reason: str) -> None:
        """Ends the observation without a result. Call this instead of `stop` if the step is not representative."""
        self._abandon(reason)
        self._forget()

    def _dissect(self, step_ms: float, is_whole: bool) -> Anatomy | None:
        if self._events is None or not len(self._events):
            self.reason = "the profiler saw no operators in the step"
            return None
        if len(self._events) > MAX_EVENTS:
            self.reason = f"the step has {len(self._events)} profiler events, too many to analyse"
            return None
        padding_share = share_of_padding(self._hooks.inputs)
        samples = self._hooks.activations + self._hooks.gradients + self._sample_parameters()
        denormal_share = share_of_denormals(samples)
        anatomy = dissect(build_trace(self._events), self._entries, step_ms, padding_share, denormal_share)
        # An interrupted step may contain only what the end of an epoch computes, such as a mean of the losses. Such a
        # step shows nothing about the model.
        trains = anatomy.modules or anatomy.optimizer_ms or (is_whole and anatomy.num_operators)
        if not trains:
            self.reason = "an epoch began in the observed step before the model was called"
            return None
        return anatomy

    def _sample_parameters(self) -> list[torch.Tensor]:
        parameters = [parameter for model in self._models for parameter in model.parameters()][:MAX_PARAMETERS]
        tensors: list[Any] = list(parameters)
        if not self._hooks.gradients:
            tensors += [parameter.grad for parameter in parameters]
        samples = (take_sample(tensor) for tensor in tensors)
        return [sample for sample in samples if sample is not None]

    def _end_profile(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.end()
            self._events = profile.results.events()

    def _overflow(self) -> None:
        self._abandon("the step calls more modules than can be recorded")

    def _abandon(self, reason: str) -> None:
        self.reason = reason
        self._undo.close()

    def _forget(self) -> None:
        """Drops the references to the script's tensors and modules."""
        self._events = None
        self._models, self._entries = [], []
        self._hooks = StepHooks([], self._overflow)
