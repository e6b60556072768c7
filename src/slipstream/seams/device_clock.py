"""Device time, measured with events that are recorded on the stream in use and read later.

This module never synchronises the device. A mark is read after the device has passed it. Nothing is recorded or read
while the script captures a CUDA graph, because a query of an event makes the capture invalid."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class DeviceMark:
    """A moment on the device's timeline. `at_ms` is set when the mark is read, and stays None if the mark is lost."""

    __slots__ = ("at_ms", "handle", "is_lost")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.at_ms: float | None = None
        self.is_lost = False


class DeviceClock(Protocol):
    def mark(self) -> DeviceMark | None:
        """Returns a mark at the end of the work that has been launched so far; None during a graph capture."""
        ...

    def collect(self) -> None:
        """Reads the marks that the device has passed. Call this method from the script's thread, because only that
        thread can tell whether the script captures a graph, or after the script has ended."""
        ...


class ClockDevice(Protocol):
    """The functions of a device that the clock needs."""

    def new_event(self) -> Any: ...

    def current_stream(self) -> Any:
        """The stream on which the script launches work now."""
        ...

    def is_capturing(self) -> bool: ...


# The marks that the device has passed are read each time after this many new marks.
_COLLECT_EVERY = 64
# A device can be about a thousand launches behind the host. There are more marks than this only if the device hangs.
# Then the oldest marks are given up.
_MAX_PENDING = 16_384
# A difference of two events is a float32 in ms. Up to this length the difference is exact to 0.1 microseconds.
_REFERENCE_MS = 1000.0


class AcceleratorClock:
    """The clock of one device. Times count from the first mark."""

    def __init__(self, device: ClockDevice, max_pending: int = _MAX_PENDING) -> None:
        self._device = device
        self._max_pending = max_pending
        # Marks by stream. The device passes the marks of one stream in order.
        self._pending: dict[Any, deque[DeviceMark]] = {}
        self._num_pending = 0
        self._num_since = 0  # Marks since the last collection
        self._pool: list[Any] = []  # Events that were read and can be used again
        self._reference: Any | None = None
        self._reference_ms = 0.0

    def mark(self) -> DeviceMark | None:
        if self._device.is_capturing():
            return None
        self._num_since += 1
        if self._num_since >= _COLLECT_EVERY:
            self._collect()
        stream = self._device.current_stream()
        event = self._pool.pop() if self._pool else self._device.new_event()
        event.record(stream)
        mark = DeviceMark(event)
        self._pending.setdefault(stream, deque()).append(mark)
        self._num_pending += 1
        if self._num_pending > self._max_pending:
            self._give_up_oldest()
        return mark

    def collect(self) -> None:
        if not self._device.is_capturing():
            self._collect()

    def _collect(self) -> None:
        self._num_since = 0
        for pending in self._pending.values():
            for _ in range(_num_passed(pending)):
                self._read(pending.popleft())
                self._num_pending -= 1

    def _read(self, mark: DeviceMark) -> None:
        event, mark.handle = mark.handle, None
        if self._reference is None:
            self._reference, mark.at_ms = event, 0.0
            return
        elapsed_ms = float(self._reference.elapsed_time(event))
        mark.at_ms = self._reference_ms + elapsed_ms
        if elapsed_ms > _REFERENCE_MS:
            event, self._reference = self._reference, event
            self._reference_ms = mark.at_ms
        self._pool.append(event)

    def _give_up_oldest(self) -> None:
        pending = max(self._pending.values(), key=len)
        mark = pending.popleft()
        mark.handle, mark.is_lost = None, True
        self._num_pending -= 1


def _num_passed(pending: deque[DeviceMark]) -> int:
    """Returns the number of marks that the device has passed. Bisection finds it with few queries, because every query
    takes time."""
    low, high = 0, len(pending)
    while low < high:
        # In most cases the device has passed all marks, so the last one is queried first.
        middle = high - 1 if low == 0 and high == len(pending) else (low + high) // 2
        if pending[middle].handle.query():
            low = middle + 1
        else:
            high = middle
    return low


class _TorchDevice:
    def __init__(self, index: int) -> None:
        import torch

        self._index = index
        self._event_type = torch.Event
        self._find_stream = torch.accelerator.current_stream
        kind = torch.accelerator.current_accelerator()
        is_cuda = kind is not None and kind.type == "cuda"
        self.is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing if is_cuda else lambda: False

    def new_event(self) -> Any:
        return self._event_type(enable_timing=True)  # An event belongs to the device on which it is recorded.

    def current_stream(self) -> Any:
        return self._find_stream(self._index)


def make_device_clock(device: str) -> DeviceClock | None:
    """Returns the clock of this device, such as "cuda:1", or None if torch has no accelerator. The CPU has no timeline
    of its own."""
    import torch

    if not torch.accelerator.is_available():
        return None
    index = torch.device(device).index
    return AcceleratorClock(_TorchDevice(torch.accelerator.current_device_index() if index is None else index))
