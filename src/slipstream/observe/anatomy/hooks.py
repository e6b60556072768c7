"""Hooks on modules and optimizers for the one observed step. They add named ranges for the profiler. They store inputs
that can show padding, and small samples of activations and gradients. They change no value and draw no random number.
All hooks are removed afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast as Range
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slipstream.observe.anatomy.denormals import take_sample
from slipstream.observe.anatomy.modules import ModuleEntry
from slipstream.observe.anatomy.padding import Inputs, note_embedding, note_inputs
from slipstream.observe.anatomy.trace import MODULE, OWN

MAX_CALLS = 20_000  # module calls in one step; a step with more is not dissected
MAX_SAMPLES = 150  # maximum number of samples of activations, and of samples of gradients


class StepHooks:
    """The hooks of one step. `overflow` is called once if the step has more module calls than can be recorded."""

    def __init__(self, entries: list[ModuleEntry], overflow: Callable[[], None]) -> None:
        self.activations: list[torch.Tensor] = []
        self.gradients: list[torch.Tensor] = []
        self.inputs = Inputs()
        self._entries = entries
        self._overflow = overflow
        self._open: list[tuple[int, Any]] = []
        self._num_calls = 0
        self._thread = 0
        self._stack = ExitStack()

    def start(self) -> None:
        self._thread = threading.get_ident()
        try:
            for index, entry in enumerate(self._entries):
                self._hook(index, entry)
            self._stack.callback(register_optimizer_step_pre_hook(self._before_update).remove)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self._close_down_to(0)
        self._stack.close()

    def _hook(self, index: int, entry: ModuleEntry) -> None:
        module = entry.module

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # Dynamo folds this call to a constant, so a graph that is captured now contains none of our code.
            if torch.compiler.is_compiling():
                return
            self._enter(index, entry, args, kwargs)

        def after(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            if torch.compiler.is_compiling():
                return
            self._leave(index, output)

        self._stack.callback(module.register_forward_pre_hook(before, prepend=True, with_kwargs=True).remove)
        # always_call: the range must also be closed if the forward pass raises and the script catches the exception.
        self._stack.callback(module.register_forward_hook(after, always_call=True).remove)

    def _enter(self, index: int, entry: ModuleEntry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Copies of the model in other threads (DataParallel) have the hooks too, but the profiler does not record these
        # threads.
        if threading.get_ident() != self._thread or self._num_calls > MAX_CALLS:
            return
        self._num_calls += 1
        if self._num_calls > MAX_CALLS:
            self._close_down_to(0)
            self._overflow()
            return
        if entry.is_root:
            note_inputs(self.inputs, args, kwargs)
            for value in (*args, *kwargs.values()):
                self._take(value, self.activations)
        elif isinstance(entry.module, nn.Embedding):
            note_embedding(self.inputs, entry.module, args)
        opened = Range(f"{MODULE}{index}")
        opened.__enter__()
        self._open.append((index, opened))

    def _leave(self, index: int, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        # A nested module that raised an exception may have left ranges open above this one: close them all.
        for depth in range(len(self._open) - 1, -1, -1):
            if self._open[depth][0] == index:
                self._close_down_to(depth + 1)
                self._take(output, self.activations)
                self._close_down_to(depth)
                return

    def _close_down_to(self, depth: int) -> None:
        while len(self._open) > depth:
            _, opened = self._open.pop()
            opened.__exit__(None, None, None)

    def _before_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Samples the gradients just before an update. Afterwards the script may have freed them."""
        if torch.compiler.is_compiling() or threading.get_ident() != self._thread:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if len(self.gradients) >= MAX_SAMPLES:
                    return
                self._take(parameter.grad, self.gradients)

    def _take(self, value: Any, samples: list[torch.Tensor]) -> None:
        if len(samples) >= MAX_SAMPLES or value is None:
            return
        with Range(OWN):
            sample = take_sample(value)
        if sample is not None:
            samples.append(sample)
