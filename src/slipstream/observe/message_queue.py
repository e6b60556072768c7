"""Collects what one process has recorded, and writes it to the process's sink."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from slipstream.records import Event, Fetch, Memory, Message, Seen, StackCount
from slipstream.seams.device_clock import DeviceMark


class Sink(Protocol):
    def write(self, message: Message) -> None: ...

    def close(self) -> None: ...


class MessageQueue:
    """The queue of one process. Without a sink it drops everything."""

    def __init__(self, sink: Sink | None) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._events: deque[tuple[Any, ...]] = deque()
        # Events with marks that the device has not passed yet
        self._marked: deque[tuple[tuple[Any, ...], DeviceMark | None, DeviceMark | None]] = deque()
        self._fetches: deque[Fetch] = deque()
        self._memory: deque[Memory] = deque()

    def add_events(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Adds events as tuples of the fields of `Event`."""
        if self._sink is not None:
            self._events.extend(events)

    def add_marked_event(self, event: tuple[Any, ...], first: DeviceMark | None, last: DeviceMark | None) -> None:
        """Adds an event whose times on the device are known later."""
        if self._sink is not None:
            self._marked.append((event, first, last))

    def add_fetch(self, fetch: Fetch) -> None:
        if self._sink is not None:
            self._fetches.append(fetch)

    def add_memory(self, memory: Memory) -> None:
        if self._sink is not None:
            self._memory.append(memory)

    def write(self, message: Message) -> None:
        """Writes a message immediately."""
        if self._sink is not None:
            with self._lock:
                self._sink.write(message)

    def flush(self, stacks: list[StackCount], is_last: bool) -> None:
        """Writes what has accumulated. Events whose device times are not known yet wait for the next flush. An event
        whose marks are lost is written without device times."""
        seen = Seen(self._drain_events(is_last), _drain(self._fetches), stacks, _drain(self._memory))
        if seen.events or seen.fetches or seen.stacks or seen.memory:
            self.write(seen)

    def forget(self) -> None:
        """Drops everything that is not written yet. Is called in a forked child, because the parent writes these
        events."""
        for queue in (self._events, self._marked, self._fetches, self._memory):
            queue.clear()
        self._lock = threading.Lock()

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def _drain_events(self, is_last: bool) -> list[Event]:
        events = _drain(self._events)
        while self._marked:
            event, first, last = self._marked[0]
            if not is_last and any(
                mark is not None and not mark.is_lost and mark.at_ms is None for mark in (first, last)
            ):
                break
            self._marked.popleft()
            if first is not None and last is not None:
                event = (*event, first.at_ms, last.at_ms)
            events.append(event)
        return msgspec.convert(events, list[Event])


def _drain(queue: deque[Any]) -> list[Any]:
    items = []
    while queue:
        items.append(queue.popleft())
    return items
