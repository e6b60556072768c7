"""Is called by the seams of one process. Follows the phase that the script is in, makes events, and counts steps."""

from __future__ import annotations

import os
from threading import get_ident
from typing import Any, Protocol

from slipstream.observe.known_objects import KnownObjects
from slipstream.observe.loop_state import LoopState
from slipstream.observe.message_queue import MessageQueue, Sink
from slipstream.observe.step_counter import StepCounter
from slipstream.records import EventKind, Loader, Model, Optimizer, ProcessStarted, Site, StackCount
from slipstream.seams.device_clock import DeviceClock
from slipstream.seams.host_clock import Clock, HostClock
from slipstream.seams.listener import Shortcut, Token

_CPU_TIMED_NS = 25_000_000  # reading the CPU time of the process is expensive, so one batch per interval is timed
_MAX_FRESH = 64  # maximum number of events that wait for the end of a step; an evaluation has more
_BY_UPDATES = ("optimizer",)
_MARKED = ("iterator", "input", "transfer", "forward", "backward", "optimizer")


class StepListener(Protocol):
    def on_steps(self, num: int) -> None:
        """Is called when steps have been counted. `num` is their number, because short steps are counted together."""
        ...

    def on_pulse(self) -> None:
        """Is called at places where the script may be stopped."""
        ...


class Recorder:
    """The recorder of one process. Without a sink it only counts steps (`run`)."""

    def __init__(self, sink: Sink | None, clock: Clock | None = None) -> None:
        self.queue = MessageQueue(sink)
        self.known = KnownObjects(self.queue)
        self.clock: Clock = clock or HostClock()
        self.now_ns = self.clock.now_ns
        self._device: DeviceClock | None = None
        self.thread = get_ident()
        self.steps = StepCounter()
        self.role = "main"
        self.counts_samples = False
        self.shortcut = Shortcut()
        self.patience_ns = 0  # by how much the counting of a step may be delayed
        self._is_muted = False
        self._is_barred = False  # the fast path is no longer used
        self._listeners: list[StepListener] = []
        self._fresh: list[tuple[Any, ...]] = []  # not yet seen by self.steps; always the same list object
        self.emit = self._fresh.append
        self.loop = LoopState(self._fresh)
        self._num_closed = 0  # steps that were not reported yet
        self._input_cpu_ns = 0  # CPU time when the open input was entered; 0: not timed

    def add_listener(self, listener: StepListener) -> None:
        self._listeners.append(listener)

    def follow_device(self, device: DeviceClock) -> None:
        """Adds times on the device's clock to the following events."""
        self.shortcut.thread = 0
        self._device = device

    @property
    def phase(self) -> str:
        return self.shortcut.phase

    @phase.setter
    def phase(self, value: str) -> None:
        self.shortcut.phase = value

    @property
    def is_muted(self) -> bool:
        """Whether recording is off because this package itself uses torch."""
        return self._is_muted

    @is_muted.setter
    def is_muted(self, value: bool) -> None:
        self._is_muted = value
        self.shortcut.thread = 0  # no fast path until the next step is counted

    # --- what seams call ------------------------------------------------------------------------------------------

    def enter(self, phase: str) -> Token | None:
        if self._is_muted or (get_ident() != self.thread and not self._follow(phase)):
            return None
        before, self.phase = self.phase, phase
        start_ns = self.now_ns()
        if phase == "input":
            self._input_cpu_ns = 0
            if start_ns >= self.shortcut.long_ns:
                self.shortcut.long_ns = start_ns + _CPU_TIMED_NS
                self._input_cpu_ns = self.clock.cpu_ns()
                start_ns = self.now_ns()  # reading the CPU time often loses the core on a busy system
        return (before, start_ns, None if self._device is None else self._device.mark())

    def _follow(self, phase: str) -> bool:
        """Whether this phase shows that the script trains in the calling thread. If so, that thread is recorded from
        now on."""
        if phase not in ("backward", "optimizer"):
            return False
        self.thread = get_ident()
        self.shortcut.thread = 0
        return True

    def leave(
        self,
        token: Token | None,
        kind: EventKind,
        ident: int,
        samples: int = 0,
        num_bytes: int = 0,
        grad: bool = False,
        training: bool = False,
        pinned: bool = False,
        blocking: bool = False,
        site: int = -1,
        caller: int = -1,
        kept: bool = False,
    ) -> None:
        if token is None:
            return
        before, start_ns, mark = token
        self.phase = "other" if before == "start" else before
        now_ns, cpu_ns = self.now_ns(), 0
        if kind == "input":
            cpu_ns = self.clock.cpu_ns() - self._input_cpu_ns if self._input_cpu_ns else 0
            self.counts_samples = self.counts_samples or samples > 0
        # The event is a tuple, because making the struct here would cost every step a few microseconds.
        how = (samples, num_bytes, cpu_ns, grad, training, pinned, blocking, site, caller, kept)
        event = (kind, ident, start_ns, now_ns, *how)
        if self._device is not None:
            self.queue.add_marked_event(event, mark, self._device.mark() if kind in _MARKED else None)
        self._fresh.append(event)
        if kind in self.steps.closers:
            self.count()
        elif len(self._fresh) >= _MAX_FRESH:
            self._look_at_fresh()

    def bar_shortcut(self) -> None:
        self._is_barred = True
        self.shortcut.thread = 0
        self.phase = "other"

    def count(self) -> None:
        """Processes the events of one step, or of several short steps, together. Between two events the training
        replaces the contents of the CPU caches, so running this code at each event would be slower."""
        # due_ns is set only here, and not in _look_at_fresh. If _look_at_fresh set it too, short steps without a loader
        # would postpone it for ever.
        self.shortcut.due_ns = (self._fresh[-1][3] if self._fresh else self.now_ns()) + self.patience_ns
        self._look_at_fresh()
        num_closed, self._num_closed = self._num_closed, 0
        if num_closed:
            for listener in self._listeners:
                listener.on_steps(num_closed)

    def _look_at_fresh(self) -> None:
        """Counts the events that have accumulated and queues them for writing."""
        fresh = self._fresh
        if not fresh:
            return
        for event in fresh:
            self._num_closed += self.steps.see(event[0], event[1], event[4] if len(event) > 4 else 0)
        self.loop.see_fresh()
        if self._device is None:
            self.queue.add_events(fresh)
        fresh.clear()
        is_plain = self._device is None and not self._is_muted and self.steps.closers == _BY_UPDATES
        self.shortcut.thread = self.thread if is_plain and not self._is_barred else 0

    def sampled_phase(self) -> str:
        """Returns the current phase for the stack sampler, as far as it is known while the step runs. With a closure,
        lines of the script run inside the optimizer's step. These lines count as "other"."""
        if self.loop.is_evaluating():
            return "evaluation"
        return "other" if self.phase == "optimizer" and self.loop.awaits_backward() else self.phase

    def abandon(self, token: Token | None) -> None:
        if token is not None:
            self.phase = token[0]

    def pulse(self) -> None:
        if not self._is_muted:
            for listener in self._listeners:
                listener.on_pulse()

    def meet(self, subject: Loader | Model | Optimizer) -> None:
        self.known.meet(subject)

    def place(self, site: Site | None) -> int:
        return self.known.place(site)

    def note(self, sentence: str) -> None:
        self.known.note(sentence)

    # --- processes --------------------------------------------------------------------------------------------------

    def report_start(self, role: str) -> None:
        """Sends the first message of this process."""
        self.role = role
        self.queue.write(ProcessStarted(process=os.getpid(), role=role, time_ns=self.clock.now_ns()))

    def forget(self) -> None:
        """Drops everything that is not written yet. Is called in a forked child, because the parent writes these
        events."""
        self.queue.forget()
        self._fresh.clear()
        self.shortcut.thread = 0
        self.thread = get_ident()

    def flush(self, stacks: list[StackCount] | None = None, is_last: bool = False) -> None:
        """Writes what has accumulated. Events whose device times are not known yet wait for the next flush."""
        if is_last:
            self._look_at_fresh()
        if self._device is not None and (is_last or get_ident() == self.thread):
            self._device.collect()
        self.queue.flush(stacks or [], is_last)
