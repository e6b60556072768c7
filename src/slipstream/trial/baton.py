"""The trial's side of a race. `Baton.tick` is called at the end of each step. It times the blocks of its trial, and
pauses the script's thread at the end of a block until the backend lets the trial continue. Within a block, a tick only
updates counters and reads the clock."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from slipstream.records import Ending
from slipstream.seams import data_threads
from slipstream.seams.patching import Patches
from slipstream.seams.stop import StopTrial
from slipstream.trial.epoch_starts import EpochStarts
from slipstream.trial.ready_batches import ReadyBatches
from slipstream.trial.timed_trial import TimedTrial
from slipstream.wire import protocol
from slipstream.wire.protocol import Finished, Go, Joined, Report, Standing, Stop, Tell, Ticked, Welcome

_MOST_READY_S = 10.0  # maximum time until batches that workers finished ahead are used up; the warm-up lasts until then
_EXIT_ALONE = 75  # exit code if the backend has ended: nothing reads this trial's messages any more


class Baton:
    """Every process of a trial has an instance. The process whose first tick comes first holds the baton. The other
    processes run without it."""

    def __init__(self, path: str, warm_up: int, trial: TimedTrial, starts: EpochStarts) -> None:
        self._trial = trial
        self._epoch_starts = starts
        self._ready_batches = ReadyBatches(warm_up)
        self._ready_end_s = math.inf  # end of the wait for ready batches
        self._path = Path(path)
        self._warm_up = warm_up
        self._wire: protocol.Wire | None = None
        self._holder = 0  # the process that holds the baton, if it is this one or its parent
        self.num_ticks = 0
        self._left = 1  # ticks until `_next` is called; if negative, it is never called
        self._limit_s = math.inf  # `_next` is also called at the first tick after this time
        self._next: Callable[[], None] = self._join
        self._first_step = 0
        self._block = Go(0, 0)
        self._start_ns = self._last_ns = time.perf_counter_ns()
        self._start_samples = self._start_compiled = self._starts_ns = 0
        self._input_ns = self._aside_ns = self._recording_ns = 0
        self._held: list[int] = []  # child processes that are stopped while this process is paused

    def time_input(self, early: Patches) -> None:
        """Measures, during the warm-up, how much of a step is spent waiting for batches, and notes the iterator that
        returns them."""

        def after(start_ns: int, args: Any, kwargs: Any, result: Any) -> None:
            self._input_ns += time.perf_counter_ns() - start_ns
            self._ready_batches.see(args[0])

        early.around(_BaseDataLoaderIter, "__next__", "baton.input", lambda args, kwargs: time.perf_counter_ns(), after)

    def tick(self) -> None:
        """Is called at the end of each step. May pause the script."""
        self.num_ticks += 1
        self._epoch_starts.confirm()
        self._left -= 1
        if not self._left or time.perf_counter() > self._limit_s:
            try:
                self._next()
            except Exception as fault:  # a trial that cannot be timed cannot race; the backend gets the reason
                self._give_up(fault)

    # --- actions at ticks -------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if torch.utils.data.get_worker_info() is not None:
            return
        self._trial.before_joining()
        wire = protocol.connect(self._path)
        if (
            wire is None
            or not wire.send(Joined(os.getpid(), time.monotonic()))
            or not isinstance(wire.receive(), Welcome)
        ):
            return  # another process of this trial was first
        self._wire, self._holder = wire, os.getpid()
        self._next = self._warm
        self._warm()

    def _warm(self) -> None:
        self._trial.synchronise()
        now_ns, compiled, aside_ns = time.perf_counter_ns(), num_compiled(), self._trial.aside_ns()
        seconds = (now_ns - self._last_ns - (aside_ns - self._aside_ns)) / 1e9
        self._send_message(Ticked(seconds, self._input_ns / 1e9, compiled != self._start_compiled))
        answer = self._receive()  # the backend may let another trial run first
        self._last_ns, self._start_compiled = time.perf_counter_ns(), compiled
        self._input_ns, self._aside_ns = 0, aside_ns
        if self.num_ticks < self._warm_up and not (isinstance(answer, Welcome) and answer.is_warm):
            self._left = 1
            return
        self._ready_end_s = min(self._ready_end_s, time.perf_counter() + _MOST_READY_S)
        if not self._ready_batches.is_used_up() and time.perf_counter() < self._ready_end_s:
            self._left = 1
            return
        self._trial.after_warm_up()
        self._stand(Standing(self.num_ticks))

    def _begin(self) -> None:
        self._first_step = self.num_ticks
        self._start_samples, self._start_compiled = self._trial.count_samples(), num_compiled()
        self._starts_ns = self._epoch_starts.total_ns
        self._left, self._next = max(1, self._block.num_steps), self._end
        self._trial.synchronise()
        self._recording_ns = self._trial.recording_ns()
        self._start_ns = time.perf_counter_ns()

    def _end(self) -> None:
        self._trial.synchronise()
        recording_ns = self._trial.recording_ns() - self._recording_ns
        seconds = (time.perf_counter_ns() - self._start_ns - recording_ns) / 1e9
        self._limit_s = math.inf
        self._stand(
            Standing(
                self._first_step,
                self.num_ticks - self._first_step,
                seconds,
                self._start_ns,
                self._trial.count_samples() - self._start_samples,
                (self._epoch_starts.total_ns - self._starts_ns) / 1e9,
                self._epoch_starts.estimate_s(),
                num_compiled() != self._start_compiled,
            )
        )

    def _stand(self, message: Standing) -> None:
        data_threads.hold()
        # Stop the workers before the backend knows that the block has ended. Work that they do between blocks would
        # make the next block look faster than it is.
        self._held = _hold_children()
        self._send_message(message)
        while True:
            answer = self._receive()
            if isinstance(answer, Tell):
                self._send_message(self._trial.report(self.num_ticks))
            elif isinstance(answer, Go):
                self._block = answer
                break
            elif isinstance(answer, Stop):
                self._wake()
                self._left, self._next = 1, self._stop  # raises again at the next tick if the script catches StopTrial
                self._stop()
        self._wake()
        self._limit_s = time.perf_counter() + answer.limit_s
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
        """Is called in a forked child. The parent keeps the baton."""
        if self._wire is not None:
            self._wire = None
            self._let_run()

    def finish(self, ending: Ending, is_always_told: bool = False) -> None:
        """Tells the backend that the script ends in this process, unless the backend itself stopped the script. With
        `is_always_told`, the report is also sent if the script raised before its first tick, when no process holds the
        baton yet."""
        if is_always_told and self._wire is None and ending.reason == "raised":
            self._wire, self._holder = protocol.connect(self._path), os.getpid()
        if self.is_held and ending.reason != "stopped":
            assert self._wire is not None
            try:
                report = self._trial.report(self.num_ticks)
            except Exception:  # the ending is sent even if the report cannot be made
                report = Report()
            self._wire.send(Finished(ending, report))
        self._let_run()

    def _let_run(self) -> None:
        self._left, self._limit_s = -1, math.inf

    def _give_up(self, fault: Exception) -> None:
        sentence = f"slipstream could not time this trial: {type(fault).__name__}: {fault}"
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
        self._wake()  # the children must run to notice that their parent has ended
        os._exit(code)

    def _send_message(self, message: protocol.WireMessage) -> None:
        assert self._wire is not None
        if not self._wire.send(message):
            self._exit(_EXIT_ALONE)

    def _receive(self) -> protocol.WireMessage:
        assert self._wire is not None
        message = self._wire.receive()
        if message is None:
            self._exit(_EXIT_ALONE)
        return message


def _hold_children() -> list[int]:
    """Stops the script's workers and every other child that it started with multiprocessing. Returns their ids."""
    held = [process.pid for process in multiprocessing.active_children() if process.pid is not None]
    _send(held, signal.SIGSTOP)
    return held


def _send(processes: list[int], number: signal.Signals) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def num_compiled() -> int:
    """Returns a number that grows whenever dynamo compiles something, successfully or not."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0
    counters = utils.counters
    return int(sum(counters["frames"].values()) + sum(counters["stats"].values()))
