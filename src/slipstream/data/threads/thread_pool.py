"""Threads that build whole batches. The number of a batch determines its worker slot. A slot has a copy of the dataset
and a random number stream. Each slot builds its batches in order, so the result does not depend on the speed of the
threads."""

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

_POLL_S = 1.0  # time after which a waiting thread checks whether the threads that it waits for are alive
_EXIT_TIMEOUT_S = 5.0


class WorkerSlot:
    """The objects that one worker process would own."""

    def __init__(self, fetcher: Any) -> None:
        self.fetcher = fetcher
        self.stream = RngStream()


class BatchTask(NamedTuple):
    number: int
    index: Any
    # The modes of the thread that asks for the batch, because modes are thread-local.
    has_grad: bool
    is_inference: bool


class BuiltBatch(NamedTuple):
    batch: Any
    fault: str = ""  # the exception that was raised instead of a batch


class BatchThreads:
    def __init__(self, slots: list[WorkerSlot], num_threads: int, pin: Callable[[Any], Any] | None = None) -> None:
        self._slots = slots
        self._pin = pin
        self._process = os.getpid()
        self._turn = threading.Condition()
        self._waiting: list[BatchTask] = []
        self._busy: set[int] = set()  # slots
        self._built: dict[int, BuiltBatch] = {}
        self._is_over = False
        self._threads = [
            threading.Thread(target=_serve, args=(self, contextvars.copy_context()), name=f"data-{n}", daemon=True)
            for n in range(num_threads)
        ]
        _pools.add(self)
        for thread in self._threads:
            thread.start()

    def put(self, task: BatchTask) -> None:
        with self._turn:
            self._waiting.append(task)
            self._turn.notify_all()

    def wait_for(self, number: int, timeout_s: float = 0.0) -> bool:
        """Waits until the batch is built. Returns False after the timeout. 0 means no timeout."""
        with self._turn:
            waited_s = 0.0
            while number not in self._built:
                if not any(thread.is_alive() for thread in self._threads):
                    self._built[number] = BuiltBatch(None, "the threads have ended")
                    break
                if timeout_s and waited_s >= timeout_s:
                    return False
                poll_s = min(_POLL_S, timeout_s - waited_s) if timeout_s else _POLL_S
                self._turn.wait(poll_s)
                waited_s += poll_s
        return True

    def take(self, number: int) -> BuiltBatch:
        """Removes and returns a batch that `wait_for` has reported as built."""
        with self._turn:
            return self._built.pop(number)

    def is_ready(self, number: int) -> bool:
        with self._turn:
            return number in self._built

    def finish(self) -> None:
        """Waits until the batches of all tasks are built, even if nobody takes them."""
        with self._turn:
            while (self._waiting or self._busy) and any(thread.is_alive() for thread in self._threads):
                self._turn.wait(_POLL_S)

    def dismiss(self) -> None:
        """Ends the threads. Each thread completes the batch that it is building. Other batches are dropped."""
        if os.getpid() != self._process:
            return  # a forked child has this object but not its threads, and nothing would release a held lock there
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
            del task, built  # a waiting thread must not keep a batch alive

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
        except BaseException as fault:  # even SystemExit, which the script then receives in its own thread
            return BuiltBatch(None, f"{type(fault).__name__}: {fault}")


@contextlib.contextmanager
def _modes(task: BatchTask) -> Iterator[None]:
    with torch.inference_mode(task.is_inference), torch.set_grad_enabled(task.has_grad):
        yield


def _serve(batch_threads: BatchThreads, context: contextvars.Context) -> None:
    with data_threads.thread():
        compute_alone()
        context.run(batch_threads.serve)


_pools: weakref.WeakSet[BatchThreads] = weakref.WeakSet()


@atexit.register
def dismiss_all() -> None:
    """Ends all data threads before the interpreter shuts down. A thread that returns from C code after the shutdown
    would crash."""
    pools = list(_pools)
    for batch_threads in pools:
        batch_threads.dismiss()
    data_threads.release()
    for batch_threads in pools:
        batch_threads.join(_EXIT_TIMEOUT_S)
