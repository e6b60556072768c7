"""Threads that build whole batches. A batch belongs to a seat by its number: a dataset copy and a stream of random
numbers that are used in turn, so that what comes out does not depend on which thread was quicker."""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from slipstream.data.threads.openmp import compute_alone
from slipstream.data.threads.rng_streams import RngStream
from slipstream.seams import data_threads

_LOOK_S = 1.0  # how often somebody who waits looks whether anybody is left to wait for
_FAREWELL_S = 5.0


class WorkerSlot:
    """What one worker process would have for itself."""

    def __init__(self, fetcher: Any) -> None:
        self.fetcher = fetcher
        self.stream = RngStream()


class BatchTask(NamedTuple):
    number: int
    index: Any
    has_grad: bool  # the asking thread's: threads have modes of their own
    is_inference: bool


class BuiltBatch(NamedTuple):
    batch: Any
    fault: str = ""  # what was raised in place of it


class BatchThreads:
    def __init__(self, slots: list[WorkerSlot], num_threads: int, pin: Callable[[Any], Any] | None = None) -> None:
        self._slots = slots
        self._pin = pin
        self._process = os.getpid()
        self._turn = threading.Condition()
        self._waiting: list[BatchTask] = []
        self._busy: set[int] = set()  # seats
        self._built: dict[int, BuiltBatch] = {}
        self._is_over = False
        self._threads = [
            threading.Thread(target=_serve, args=(self, contextvars.copy_context()), name=f"data-{n}", daemon=True)
            for n in range(num_threads)
        ]
        _crews.add(self)
        for thread in self._threads:
            thread.start()

    def put(self, task: BatchTask) -> None:
        with self._turn:
            self._waiting.append(task)
            self._turn.notify_all()

    def wait_for(self, number: int, timeout_s: float = 0.0) -> bool:
        """False: it was not built in so many seconds."""
        with self._turn:
            waited_s = 0.0
            while number not in self._built:
                if not any(thread.is_alive() for thread in self._threads):
                    self._built[number] = BuiltBatch(None, "the threads have ended")
                    break
                if timeout_s and waited_s >= timeout_s:
                    return False
                look_s = min(_LOOK_S, timeout_s - waited_s) if timeout_s else _LOOK_S
                self._turn.wait(look_s)
                waited_s += look_s
        return True

    def take(self, number: int) -> BuiltBatch:
        """Of one that was waited for."""
        with self._turn:
            return self._built.pop(number)

    def is_ready(self, number: int) -> bool:
        with self._turn:
            return number in self._built

    def finish(self) -> None:
        """Everything that was put is built, whoever wants it."""
        with self._turn:
            while (self._waiting or self._busy) and any(thread.is_alive() for thread in self._threads):
                self._turn.wait(_LOOK_S)

    def dismiss(self) -> None:
        """What a thread has begun it ends; nothing else is built."""
        if os.getpid() != self._process:
            return  # a forked child has the object, not the threads, and the lock may be held for ever
        with self._turn:
            self._is_over = True
            self._waiting.clear()
            self._built.clear()
            self._turn.notify_all()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def join(self, timeout_s: float | None = None) -> None:
        if os.getpid() == self._process:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(timeout_s)

    # --- in a thread -------------------------------------------------------------------------------------------------

    def serve(self) -> None:
        while (task := self._next()) is not None:
            built = self._build(task)
            with self._turn:
                self._busy.discard(task.number % len(self._slots))
                if not self._is_over:
                    self._built[task.number] = built
                self._turn.notify_all()
            del task, built  # a thread that waits keeps no batch alive

    def _next(self) -> BatchTask | None:
        data_threads.stand_if_held()
        with self._turn:
            while not self._is_over:
                for place, task in enumerate(self._waiting):
                    slot = task.number % len(self._slots)
                    if slot not in self._busy:
                        self._busy.add(slot)
                        return self._waiting.pop(place)
                self._turn.wait()
        return None

    def _build(self, task: BatchTask) -> BuiltBatch:
        slot = self._slots[task.number % len(self._slots)]
        try:
            with _modes(task), slot.stream.drawn_from():
                batch = slot.fetcher.fetch(task.index)
            return BuiltBatch(self._pin(batch) if self._pin is not None else batch)
        except BaseException as fault:  # even SystemExit: the script meets it in its own thread
            return BuiltBatch(None, f"{type(fault).__name__}: {fault}")


@contextlib.contextmanager
def _modes(task: BatchTask) -> Iterator[None]:
    with torch.inference_mode(task.is_inference), torch.set_grad_enabled(task.has_grad):
        yield


def _serve(batch_threads: BatchThreads, context: contextvars.Context) -> None:
    with data_threads.thread():
        compute_alone()
        context.run(batch_threads.serve)


_crews: weakref.WeakSet[BatchThreads] = weakref.WeakSet()


@atexit.register
def dismiss_all() -> None:
    """Before the interpreter goes: a thread that is in C by then would come back to nothing."""
    crews = list(_crews)
    for batch_threads in crews:
        batch_threads.dismiss()
    data_threads.release()
    for batch_threads in crews:
        batch_threads.join(_FAREWELL_S)
