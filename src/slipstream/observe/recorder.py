"""Listens to the seams of one process and sends the events to the parent. Counts steps on the way; decides nothing."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

import msgspec

from slipstream.observe.live_steps import LiveSteps
from slipstream.records import (
    Event,
    EventKind,
    Fetch,
    Loader,
    Memory,
    Message,
    Met,
    Model,
    Optimizer,
    ProcessStarted,
    Seen,
    Site,
    StackCount,
    Told,
)
from slipstream.seams.device_clock import DeviceClock, DeviceMark
from slipstream.seams.host_clock import Clock, HostClock
from slipstream.seams.listener import Shortcut, Token

_CPU_TIMED_NS = 25_000_000  # reading the CPU time of the process is expensive, so one batch per interval is timed
_MAX_FRESH = 64  # events are passed on at this number even if no step ends, as in an evaluation
_BY_UPDATES = ("optimizer",)
_MARKED = ("iterator", "input", "transfer", "forward", "backward", "optimizer")


class Sink(Protocol):
    def write(self, message: Message) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """The recorder of one process. Without a sink it only counts steps (`run`)."""

    def __init__(self, sink: Sink | None, clock: Clock | None = None) -> None:
        self._sink = sink
        self.clock: Clock = clock or HostClock()
        self.now_ns = self.clock.now_ns
        self._device: DeviceClock | None = None
        self.thread = get_ident()
        self.pace = LiveSteps()
        self.role = "main"
        self.counts_samples = False
        self.shortcut = Shortcut()
        self.patience_ns = 0  # by how much the counting of a step may be delayed
        self._is_muted = False
        self._is_barred = False  # the fast path has failed once
        self.worker = -1
        self.loader_of_worker: Callable[[], int] = lambda: -1
        self.on_pulse: Callable[[], None] | None = None
        self.on_step: Callable[[int], None] | None = None  # called with the number of steps that were closed
        self.on_fetch: Callable[[], None] | None = None  # a worker has built a batch
        self.has_fetched = False  # a worker has finished its start-up: imports, worker_init_fn
        self._events: deque[tuple[Any, ...]] = deque()
        self._fresh: list[tuple[Any, ...]] = []  # not yet seen by self.pace; always the same list object
        self.emit = self._fresh.append
        self._num_closed = 0  # steps that were not reported yet
        # Events with marks that the device has not passed yet
        self._unread: deque[tuple[tuple[Any, ...], DeviceMark | None, DeviceMark | None]] = deque()
        self._fetches: deque[Fetch] = deque()
        self._memory: deque[Memory] = deque()
        self._places: dict[Site, int] = {}
        self._noted: set[str] = set()
        self._writing = threading.Lock()
        self._input_cpu_ns = 0  # CPU time when the open input was entered; 0: not timed
        self._trained: set[int] = set()
        self._evaluated: set[int] = set()  # models that were seen in evaluation mode
        self._is_evaluating = False
        self._awaits_backward = False
        self.subjects: dict[tuple[type, int], Loader | Model | Optimizer] = {}

    def follow_device(self, device: DeviceClock) -> None:
        """Makes every following event carry times on the device's clock as well."""
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
                start_ns = self.now_ns()  # on a busy system this call often loses the core
        return (before, start_ns, None if self._device is None else self._device.mark())

    def _follow(self, phase: str) -> bool:
        """Whether the script trains in this thread. If so, this thread is recorded from now on."""
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
        # An Event as a tuple: making the struct here would cost every step a few microseconds
        how = (samples, num_bytes, cpu_ns, grad, training, pinned, blocking, site, caller, kept)
        event = (kind, ident, start_ns, now_ns, *how)
        if self._device is not None and self._sink is not None:
            self._unread.append((event, mark, self._device.mark() if kind in _MARKED else None))
        self._fresh.append(event)
        if kind in self.pace.closers:
            self.count()
        elif len(self._fresh) >= _MAX_FRESH:
            self._look_at_fresh()

    def bar_shortcut(self) -> None:
        self._is_barred = True
        self.shortcut.thread = 0
        self.phase = "other"

    def count(self) -> None:
        """Processes the events of one step, or of many short ones, together. Between two events the training replaces
        the contents of the CPU caches, so running this code at each event would cost memory accesses each time."""
        # due_ns is set only here and not wherever events are passed on: with short steps and no loader it would
        # otherwise be postponed for ever.
        self.shortcut.due_ns = (self._fresh[-1][3] if self._fresh else self.now_ns()) + self.patience_ns
        self._look_at_fresh()
        num_closed, self._num_closed = self._num_closed, 0
        if num_closed and self.on_step is not None:
            self.on_step(num_closed)

    def _look_at_fresh(self) -> None:
        """Counts the events that have accumulated and queues them for writing."""
        fresh = self._fresh
        if not fresh:
            return
        for event in fresh:
            self._num_closed += self.pace.see(event[0], event[1], event[4] if len(event) > 4 else 0)
            if event[0] == "forward":
                (self._trained if event[8] else self._evaluated).add(event[1])
        self._is_evaluating, self._awaits_backward = self._evaluates(), self.awaits_backward()
        if self._sink is not None and self._device is None:
            self._events.extend(fresh)
        fresh.clear()
        is_plain = self._device is None and not self._is_muted and self.pace.closers == _BY_UPDATES
        self.shortcut.thread = self.thread if is_plain and not self._is_barred else 0

    def _evaluates(self) -> bool:
        """Whether the last forward pass was an evaluation of a model that also trains. Loss modules are ignored: they
        are never switched to evaluation mode."""
        evaluated = self._evaluated.union(event[1] for event in self._fresh if event[0] == "forward" and not event[8])
        for event in reversed(self._fresh):
            if event[0] == "backward":
                return False
            if event[0] == "forward" and not event[8] and event[1] in self._trained:
                return True
            if event[0] == "forward" and event[8] and event[1] in evaluated:
                return False
        return self._is_evaluating

    def sampled_phase(self) -> str:
        """Returns the current phase for the stack sampler, as far as it is known while the step runs. In a closure the
        script's own lines run inside the optimizer's step; they count as "other"."""
        if self._evaluates():
            return "evaluation"
        return "other" if self.phase == "optimizer" and self.awaits_backward() else self.phase

    def awaits_backward(self) -> bool:
        """Whether a forward pass with gradients has ended and its backward pass has not begun."""
        for event in reversed(self._fresh):
            if event[0] in ("backward", "optimizer"):
                return False
            if event[0] == "forward":
                return bool(event[7])
        return self._awaits_backward

    def abandon(self, token: Token | None) -> None:
        if token is not None:
            self.phase = token[0]

    def pulse(self) -> None:
        if self.on_pulse is not None and not self.is_muted:
            self.on_pulse()

    def meet(self, subject: Loader | Model | Optimizer) -> None:
        self.subjects[(type(subject), subject.ident)] = subject
        if isinstance(subject, Loader):
            self.write(Met(loader=subject))
        elif isinstance(subject, Model):
            self.write(Met(model=subject))
        else:
            self.write(Met(optimizer=subject))

    def place(self, site: Site | None) -> int:
        if site is None:
            return -1
        ident = self._places.get(site)
        if ident is None:
            ident = self._places[site] = len(self._places)
            self.write(Met(site=site, site_ident=ident))
        return ident

    def note(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self.write(Told(note=sentence))

    # --- batches built by a worker ------------------------------------------------------------------------------

    def begin_fetch(self) -> tuple[int, int]:
        self.has_fetched = True
        return self.clock.now_ns(), self.clock.cpu_ns()

    def end_fetch(self, token: tuple[int, int], num_samples: int, drew: Callable[[], bool | None]) -> None:
        if self._sink is not None:
            start_ns, cpu_ns = token
            wall_ns = self.clock.now_ns() - start_ns
            spent_ns = self.clock.cpu_ns() - cpu_ns
            loader = self.loader_of_worker()
            self._fetches.append(Fetch(loader, self.worker, start_ns, wall_ns, spent_ns, num_samples, drew()))
            if self.on_fetch is not None:
                self.on_fetch()

    def remember(self, memory: Memory) -> None:
        self._memory.append(memory)

    # --- processes --------------------------------------------------------------------------------------------------

    def report_start(self, role: str) -> None:
        """Sends the first message of this process."""
        self.role = role
        self.write(ProcessStarted(process=os.getpid(), role=role, time_ns=self.clock.now_ns()))

    def forget(self) -> None:
        """Drops everything that is not written yet. Called in a forked child: the parent writes its own events."""
        self._events.clear()
        self._fresh.clear()
        self.shortcut.thread = 0
        self._unread.clear()
        self._fetches.clear()
        self._memory.clear()
        self._writing = threading.Lock()
        self.thread = get_ident()

    # --- writing ------------------------------------------------------------------------------------------------------

    def write(self, message: Message) -> None:
        if self._sink is not None:
            with self._writing:
                self._sink.write(message)

    def flush(self, stacks: list[StackCount] | None = None, is_last: bool = False) -> None:
        """Writes what has accumulated. Events whose device times are not known yet wait for the next flush."""
        if is_last:
            self._look_at_fresh()
        if self._device is not None:
            self._device.collect()
        seen = Seen(self._drain_events(is_last), _drain(self._fetches), stacks or [], _drain(self._memory))
        if seen.events or seen.fetches or seen.stacks or seen.memory:
            self.write(seen)

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def _drain_events(self, is_last: bool) -> list[Event]:
        events = _drain(self._events)
        while self._unread:
            event, first, last = self._unread[0]
            if last is not None and last.at_ms is None and not is_last:
                break
            self._unread.popleft()
            if first is not None and last is not None:
                event = (*event, first.at_ms, last.at_ms)
            events.append(event)
        return msgspec.convert(events, list[Event])


def _drain(queue: deque[Any]) -> list[Any]:
    items = []
    while queue:
        items.append(queue.popleft())
    return items
