"""The rider's side of the race: counts ticks, times its own blocks, and stands still in the script's thread until it is
told to go on. Between the ends of a block it adds one count to a step."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.records import Ending
from slipstream.seams import data_threads
from slipstream.seams.patching import Patches
from slipstream.seams.stop import StopTrial
from slipstream.trial.epoch_starts import EpochStarts
from slipstream.trial.recipe_protocol import AppliedRecipe
from slipstream.wire import protocol
from slipstream.wire.protocol import Finished, Go, Joined, Report, Standing, Stop, Tell, Ticked, Welcome

_ANOTHER = 200  # updates of others without one of the first optimizer: its training is over, theirs has begun
_EXIT_ALONE = 75  # the relay is gone: nobody waits for what this rider could say


class Baton:
    """In every process of a rider; the one that ticks first holds it, the others ride on without."""

    def __init__(self, path: str, warm_up: int) -> None:
        self._path = Path(path)
        self._warm_up = warm_up
        self._wire: protocol.Wire | None = None
        self._holder = 0  # the process that holds it, if it is this one or its parent
        self.num_ticks = 0
        self._left = 1  # ticks until `_next` is called; below zero: never
        self._next: Callable[[], None] = self._join
        self._first_step = 0
        self._block = Go(0, 0)
        self._start_ns = self._last_ns = time.perf_counter_ns()
        self._start_samples = self._start_compiled = self._starts_ns = 0
        self.starts = EpochStarts()
        self._input_ns = self._aside_ns = 0
        self._first: weakref.ref[Any] | None = None
        self._num_of_others = 0  # updates, since its last
        self._held: list[int] = []  # children that stand still with us
        self.count_samples: Callable[[], int] = lambda: 0
        self.synchronise: Callable[[], None] = lambda: None
        self.aside_ns: Callable[[], int] = lambda: 0  # time taken by us so far
        self.on_join: Callable[[], None] = lambda: None
        self.on_warm: Callable[[], None] = lambda: None
        self.report: Callable[[], Report] = Report

    # --- where ticks come from --------------------------------------------------------------------------------------

    def count_updates(self, patches: Patches) -> None:
        """Of the optimizer that steps first. The others belong to the same step, as long as that one goes on."""
        self._first = None
        hook = patches.guard("baton.update", self._after_step)
        patches.on_close(register_optimizer_step_post_hook(hook).remove)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        first = self._first() if self._first is not None else None
        if first is not optimizer:
            self._num_of_others += 1
            if first is not None and self._num_of_others < _ANOTHER:
                return
            self._first = weakref.ref(optimizer)
        self._num_of_others = 0
        self.tick()

    def count_backwards(self, patches: Patches) -> None:
        depth = 0

        def before(args: Any, kwargs: Any) -> None:
            nonlocal depth
            depth += 1

        def abandon(token: Any) -> None:
            nonlocal depth
            depth -= 1

        def after(token: Any, args: Any, kwargs: Any, result: Any) -> None:
            abandon(token)
            if not depth:
                self.tick()

        patches.around(torch.autograd, "backward", "baton.backward", before, after, abandon)

    def count_calls(self, context: AppliedRecipe) -> None:
        """Of the first module that the script calls."""
        is_taken = False

        def counted(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.tick()
            return result

        def meet(module: Any) -> None:
            nonlocal is_taken
            if not is_taken:
                is_taken = True
                context.wrap_call(module, counted)

        context.on_model(meet)

    def count_batches(self, patches: Patches) -> None:
        patches.around(
            _BaseDataLoaderIter, "__next__", "baton.batch", None, lambda token, args, kwargs, result: self.tick()
        )

    def time_input(self, early: Patches) -> None:
        """While warming up: how much of a step was waiting for batches."""

        def after(start_ns: int, args: Any, kwargs: Any, result: Any) -> None:
            self._input_ns += time.perf_counter_ns() - start_ns

        early.around(_BaseDataLoaderIter, "__next__", "baton.input", lambda args, kwargs: time.perf_counter_ns(), after)

    def tick(self) -> None:
        self.num_ticks += 1
        self.starts.confirm()
        self._left -= 1
        if not self._left:
            try:
                self._next()
            except Exception as fault:  # a race that cannot be timed is none; the relay shall know why
                self._give_up(fault)

    # --- what happens at them ---------------------------------------------------------------------------------------

    def _join(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            return
        self.on_join()
        wire = protocol.connect(self._path)
        if (
            wire is None
            or not wire.send(Joined(os.getpid(), time.monotonic()))
            or not isinstance(wire.receive(), Welcome)
        ):
            return  # another process of this rider was first
        self._wire, self._holder = wire, os.getpid()
        self._next = self._warm
        self._warm()

    def _warm(self) -> None:
        self.synchronise()
        now_ns, compiled, aside_ns = time.perf_counter_ns(), num_compiled(), self.aside_ns()
        seconds = (now_ns - self._last_ns - (aside_ns - self._aside_ns)) / 1e9
        self._say(Ticked(seconds, self._input_ns / 1e9, compiled != self._start_compiled))
        self._hear()  # the relay may let another trial run first
        self._last_ns, self._start_compiled = time.perf_counter_ns(), compiled
        self._input_ns, self._aside_ns = 0, aside_ns
        if self.num_ticks < self._warm_up:
            self._left = 1
            return
        self.on_warm()
        self._stand(Standing(self.num_ticks))

    def _begin(self) -> None:
        self._first_step = self.num_ticks
        self._start_samples, self._start_compiled = self.count_samples(), num_compiled()
        self._starts_ns = self.starts.total_ns
        self._left, self._next = max(1, self._block.num_steps), self._end
        self.synchronise()
        self._start_ns = time.perf_counter_ns()

    def _end(self) -> None:
        self.synchronise()
        seconds = (time.perf_counter_ns() - self._start_ns) / 1e9
        self._stand(
            Standing(
                self._first_step,
                self._block.num_steps,
                seconds,
                self._start_ns,
                self.count_samples() - self._start_samples,
                (self.starts.total_ns - self._starts_ns) / 1e9,
                self.starts.estimate_s(),
                num_compiled() != self._start_compiled,
            )
        )

    def _stand(self, word: Standing) -> None:
        data_threads.hold()
        self._held = _hold_children()  # before anyone knows: what workers do meanwhile is free work for the next block
        self._say(word)
        while True:
            answer = self._hear()
            if isinstance(answer, Tell):
                self._say(self.report())
            elif isinstance(answer, Go):
                self._block = answer
                break
            elif isinstance(answer, Stop):
                self._wake()
                self._left, self._next = 1, self._stop  # again, should the script catch it
                self._stop()
        self._wake()
        if answer.lead_in:
            self._left, self._next = answer.lead_in, self._begin
        else:
            self._begin()

    def _stop(self) -> None:
        self._left = 1
        raise StopTrial

    # --- processes ------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        return self._wire is not None and self._holder == os.getpid()

    def forget(self) -> None:
        """In a forked child: what its parent holds is not its to pass."""
        if self._wire is not None:
            self._wire, self._left = None, -1

    def finish(self, ending: Ending, is_always_told: bool = False) -> None:
        """The script ends in this process. `is_always_told`: with what is to be reported even if it raised before its
        first tick, and nobody holds the baton yet."""
        if is_always_told and self._wire is None and ending.reason == "raised":
            self._wire, self._holder = protocol.connect(self._path), os.getpid()
        if self.is_held and ending.reason != "stopped":
            assert self._wire is not None
            try:
                report = self.report()
            except Exception:  # the ending matters more
                report = Report()
            self._wire.send(Finished(ending, report))
        self._left = -1

    def _give_up(self, fault: Exception) -> None:
        sentence = f"slipstream could not time it: {type(fault).__name__}: {fault}"
        if self.is_held:
            assert self._wire is not None
            self._wire.send(Finished(Ending("raised", 1, 0.0, sentence)))
            self._exit(1)
        print(sentence, file=sys.stderr)

    def _wake(self) -> None:
        _send(self._held, signal.SIGCONT)
        self._held = []
        data_threads.release()

    def _exit(self, code: int) -> NoReturn:
        self._wake()  # to see that their parent is gone
        os._exit(code)

    def _say(self, word: protocol.Word) -> None:
        assert self._wire is not None
        if not self._wire.send(word):
            self._exit(_EXIT_ALONE)

    def _hear(self) -> protocol.Word:
        assert self._wire is not None
        word = self._wire.receive()
        if word is None:
            self._exit(_EXIT_ALONE)
        return word


def _hold_children() -> list[int]:
    """The script's workers, and whatever else it started as they are."""
    held = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
    _send(held, signal.SIGSTOP)
    return held


def _send(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def num_compiled() -> int:
    """Grows with everything that dynamo compiles, successfully or not."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    counters = utils.counters
    return int(sum(counters["frames"].values()) + sum(counters["stats"].values()))
