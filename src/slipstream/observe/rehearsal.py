"""Rehearsals: short comparisons at the end of a check, on copies of the script's own model, batch and optimizer. They
measure whether a remedy gains on this machine. They do not change the script's objects. `rehearse` decides which
rehearsals a script needs. The rehearsals share a budget of seconds, and one that does not fit is left out."""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import msgspec
import torch

from slipstream.machine.environment import count_usable_cores
from slipstream.observe.torch_facts import read_torch_facts
from slipstream.records import Rehearsal
from slipstream.records.rehearsal import HOPELESS
from slipstream.seams.batches import copy_batch
from slipstream.seams.devices import synchronise_devices
from slipstream.seams.modules.module_copy import copy_module
from slipstream.seams.nested import walk_tensors

_MAX_PARAMETERS = 200_000_000
_ROUNDS = 41
_LEAST_ROUNDS = 5
_SURE_ROUNDS = 11  # with 11 pairs the interval tolerates two disturbed pairs; with 5 it tolerates none
_HOPELESS_PAIRS = 2  # this number of hopeless pairs in a row ends a rehearsal; a single one may be an accident

Run = Callable[[], Any]


def race(remedy: str, setting: str, now: Run, then: Run, seconds: float) -> Rehearsal | None:
    """Runs `now` and `then` alternately for about `seconds`, and at least 5 times each. Returns None if the untimed
    first calls take longer than `seconds`. If fewer than 11 pairs fit and their interval contains 1, more pairs are
    run, for at most `seconds` again."""
    deadline = time.monotonic() + seconds
    for run in (now, then, now, then):  # the first calls allocate and choose kernels
        run()
        if time.monotonic() > deadline:
            return None
    pairs: list[tuple[float, float]] = []
    while len(pairs) < _ROUNDS and (
        time.monotonic() < deadline
        or len(pairs) < _LEAST_ROUNDS
        or (len(pairs) < _SURE_ROUNDS and _is_undecided(pairs) and time.monotonic() < deadline + seconds)
    ):
        if len(pairs) % 2:
            second, first = _timed_ms(then), _timed_ms(now)
        else:
            first, second = _timed_ms(now), _timed_ms(then)
        pairs.append((first, second))
    return _result(remedy, setting, pairs)


def _result(remedy: str, setting: str, pairs: list[tuple[float, float]]) -> Rehearsal:
    ratios, outside = _ratios(pairs)
    return Rehearsal(
        remedy=remedy,
        setting=setting,
        now_ms=_median([first for first, _ in pairs]),
        then_ms=_median([second for _, second in pairs]),
        ratio=_median(ratios),
        low=ratios[outside],
        high=ratios[-1 - outside],
        num_pairs=len(pairs),
    )


def _ratios(pairs: list[tuple[float, float]]) -> tuple[list[float], int]:
    """Returns the sorted ratios, and how many of them at either end are outside the 95% interval of the median."""
    ratios = sorted(first / second for first, second in pairs)
    return ratios, max(0, int((len(ratios) - 1.96 * len(ratios) ** 0.5) / 2))


def _is_undecided(pairs: list[tuple[float, float]]) -> bool:
    """Whether the interval contains 1, so that the pairs do not show whether the remedy is faster."""
    ratios, outside = _ratios(pairs)
    return ratios[outside] < 1 < ratios[-1 - outside]


def _timed_ms(run: Run) -> float:
    # Waiting for devices is allowed here, because the observation of the script is over.
    synchronise_devices()
    start = time.perf_counter()
    run()
    synchronise_devices()
    return (time.perf_counter() - start) * 1e3


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class ModelRehearsal:
    """A copy of the model with a batch that the script called it with."""

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._model = _copy_model(model)
        self._args = copy_batch(args)
        self._kwargs = copy_batch(kwargs)
        self._device = next(model.parameters()).device.type

    def channels_last(self, seconds: float) -> Rehearsal | None:
        changed = ModelRehearsal(self._model, self._args, self._kwargs)
        # Module.to is not used, because it fails if a model holds tensors of five dimensions (as detectors do).
        weights = list(changed._model.parameters())
        for tensor in [*weights, *(tensor for _, tensor in walk_tensors([changed._args, changed._kwargs]))]:
            if tensor.dim() == 4:
                tensor.data = tensor.contiguous(memory_format=torch.channels_last)
        return race("channels_last", "", self._run, changed._run, seconds)

    def threads(self, count: int, seconds: float) -> Rehearsal | None:
        return race("threads", str(count), self._run, self._within(_threads(count)), seconds)

    def flush_denormals(self, seconds: float) -> Rehearsal | None:
        # In one thread, because the flag applies only to the calling thread
        now, then = self._within(_threads(1)), self._within(_threads(1), _flushed())
        rehearsal = race("flush_denormals", "", now, then, seconds)
        if rehearsal is None:
            return None
        now()
        was_finite = self._is_finite()
        then()  # the script may divide by a value that is flushed to zero
        return msgspec.structs.replace(rehearsal, breaks_values=was_finite and not self._is_finite())

    def bf16(self, seconds: float) -> Rehearsal | None:
        """Compares fp32 with bf16 autocast. On a CPU without units for bf16, a run may take 30 times as long as in
        fp32. A pair in which bf16 takes more than `HOPELESS` times as long is hopeless, and the rehearsal ends after
        two hopeless pairs. If the time is over, a hopeless run is ended early, and its time is a lower bound."""
        deadline = time.monotonic() + seconds
        autocast = torch.autocast(self._device, dtype=torch.bfloat16)
        lower = self._within(lambda: autocast)
        self._run()  # the first call allocates and chooses kernels
        pairs: list[tuple[float, float]] = []
        while len(pairs) < _HOPELESS_PAIRS:
            now_ms = _timed_ms(self._run)
            now_s = time.monotonic()
            if now_s + now_ms / 1e3 > deadline and not pairs:
                return None
            lower_ms, is_whole = self._timed_until(lower, max(deadline, now_s + HOPELESS * now_ms / 1e3))
            now_ms = now_ms if is_whole else max(now_ms, _timed_ms(self._run))  # fp32 may be slow now, too
            if lower_ms <= HOPELESS * now_ms:
                return race("bf16", "", self._run, lower, deadline - time.monotonic())
            pairs.append((now_ms, lower_ms))
            if not is_whole:
                break  # a second run would take as long again
        return _result("bf16", "", pairs)

    def _timed_until(self, run: Run, end_s: float) -> tuple[float, bool]:
        """Returns the milliseconds of a run, and whether it was complete. After `end_s` the run is ended between two
        modules of the forward or backward pass."""

        def check(*_: Any) -> None:
            if time.monotonic() > end_s:
                raise _TooLongError

        def follow(module: torch.nn.Module, args: Any, output: Any) -> None:
            check()
            tensors: list[Any] = [tensor for _, tensor in walk_tensors(output)]
            for tensor in tensors:
                if tensor.requires_grad:
                    handles.append(tensor.register_hook(check))

        handles: list[Any] = [module.register_forward_hook(follow) for module in self._model.modules()]
        start = time.perf_counter()
        try:
            return _timed_ms(run), True
        except _TooLongError:
            return (time.perf_counter() - start) * 1e3, False
        finally:
            for handle in handles:
                handle.remove()

    def _within(self, *contexts: Callable[[], AbstractContextManager[Any]]) -> Run:
        def run() -> None:
            with contextlib.ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context())
                self._run()

        return run

    def _is_finite(self) -> bool:
        """Whether the last run had finite results, judged by its gradients, which depend on every result."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        return all(bool(gradient.isfinite().all()) for gradient in gradients)

    def _run(self) -> None:
        for parameter in self._model.parameters():
            parameter.grad = None
        output = self._model(*self._args, **self._kwargs)
        total = sum(t.float().sum() for _, t in walk_tensors(output) if t.is_floating_point() and t.requires_grad)
        if isinstance(total, torch.Tensor):
            torch.autograd.backward(total)


class _TooLongError(Exception):
    """Ends a run of the copy."""


def _copy_model(model: torch.nn.Module) -> torch.nn.Module:
    if sum(parameter.numel() for parameter in model.parameters()) > _MAX_PARAMETERS:
        raise ValueError("the model is too large to copy")
    return copy_module(model).train(model.training)


def _threads(count: int) -> Callable[[], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    return context


def _flushed() -> Callable[[], AbstractContextManager[None]]:
    @contextlib.contextmanager
    def context() -> Iterator[None]:
        torch.set_flush_denormal(True)
        try:
            yield
        finally:
            torch.set_flush_denormal(False)

    return context


def fused_optimizer(optimizer: torch.optim.Optimizer, seconds: float) -> Rehearsal | None:
    """Compares the optimizer as it is with fused=True, each on copies of all its parameters and gradients."""
    if sum(p.numel() for group in optimizer.param_groups for p in group["params"]) > _MAX_PARAMETERS:
        return None
    now = _copy_optimizer(optimizer, {})
    then = _copy_optimizer(optimizer, {"fused": True, "foreach": None})
    return race("fused_optimizer", "", now.step, then.step, seconds)


def _copy_optimizer(optimizer: torch.optim.Optimizer, changes: dict[str, Any]) -> torch.optim.Optimizer:
    groups = []
    for group in optimizer.param_groups:
        settings = {key: value for key, value in group.items() if key in optimizer.defaults} | changes
        groups.append({**settings, "params": [_copy_parameter(p) for p in group["params"]]})
    return type(optimizer)(groups, **{**_accepted(optimizer), **changes})


def _accepted(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the defaults that the class accepts as arguments. Some classes store further values in `defaults`."""
    names = inspect.signature(type(optimizer).__init__).parameters
    return {key: value for key, value in optimizer.defaults.items() if key in names}


def _copy_parameter(parameter: torch.Tensor) -> torch.Tensor:
    copied = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    copied.grad = torch.full_like(copied, 1e-4) if parameter.grad is None else parameter.grad.detach().clone()
    return copied


_DENORMAL = 1e-3  # share of denormal values above which flushing them is rehearsed
Caught = tuple[Any, tuple[Any, ...], dict[str, Any]]
Task = Callable[[float], Rehearsal | None]


def rehearse(
    caught: Caught | None, optimizers: list[Any], denormal_share: float, seconds: float
) -> tuple[list[Rehearsal], list[str]]:
    """Returns what was measured, and a sentence for each rehearsal that could not be run."""
    tasks: list[tuple[str, Task]] = []
    reasons: list[str] = []
    try:
        tasks += _model_tasks(*caught, denormal_share) if caught is not None else []
    except Exception as fault:  # a model that cannot be copied
        reasons.append(f"The model could not be copied to try remedies on it: {_in_one_line(fault)}")
    tasks += [("fused", partial(fused_optimizer, optimizer)) for optimizer in optimizers if _could_fuse(optimizer)]
    tasks.sort(key=lambda task: task[0] == "bf16")  # last, because it may take longer than its share of the time
    done: list[Rehearsal] = []
    deadline = time.monotonic() + seconds
    for position, (name, task) in enumerate(tasks):
        try:
            rehearsal = task((deadline - time.monotonic()) / (len(tasks) - position))
        except Exception as fault:
            reasons.append(f"{name} could not be tried on a copy of the model: {_in_one_line(fault)}")
            continue
        if rehearsal is not None:
            done.append(rehearsal)
    return done, reasons


def _in_one_line(fault: Exception) -> str:
    """Returns the class and the first sentence. The further sentences of torch's messages guess at the cause."""
    sentence = " ".join(str(fault).split()).split(". ")[0]
    return f"{type(fault).__name__}: {sentence}" if sentence else type(fault).__name__


def _model_tasks(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], denormal_share: float
) -> list[tuple[str, Task]]:
    if hasattr(model, "_orig_mod"):
        return []  # compiled: a copy would be compiled again
    device = next(model.parameters()).device.type
    wanted: list[tuple[str, Callable[[ModelRehearsal], Task]]] = []
    if _has_default_layout(model):
        wanted.append(("channels_last", lambda copied: copied.channels_last))
    cores = max(1, int(count_usable_cores()))
    if device == "cpu" and torch.get_num_threads() != cores:
        wanted.append(("threads", lambda copied: lambda seconds: copied.threads(cores, seconds)))
    if device == "cpu" and denormal_share > _DENORMAL:
        wanted.append(("flush_denormals", lambda copied: copied.flush_denormals))
    # This rehearsal runs on every CPU. Without units for bf16 it shows how much slower bf16 is, and tuning then skips
    # bf16.
    if (device == "cpu" or read_torch_facts(device).has_fast_bf16) and all(
        p.dtype == torch.float32 for p in model.parameters()
    ):
        wanted.append(("bf16", lambda copied: copied.bf16))
    if not wanted:
        return []
    copied = ModelRehearsal(model, args, kwargs)
    return [(name, make(copied)) for name, make in wanted]


def _has_default_layout(model: torch.nn.Module) -> bool:
    weights = [m.weight for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.weight.shape[1] > 1]
    spatial = [weight for weight in weights if max(weight.shape[2:]) > 1]
    return bool(spatial) and not any(w.is_contiguous(memory_format=torch.channels_last) for w in spatial)


def _could_fuse(optimizer: Any) -> bool:
    return "fused" in optimizer.defaults and not optimizer.defaults["fused"]
