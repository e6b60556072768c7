"""Device time, measured with events that are recorded on the current stream and read later. This module never
synchronises the device: a mark is read once the device has passed it, and dropped if the device never does."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol


class DeviceMark:
    """A moment on the device's timeline. `at_ms` is set when the device has reached it."""

    __slots__ = ("at_ms", "handle")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.at_ms: float | None = None


class DeviceClock(Protocol):
    def mark(self) -> DeviceMark: ...

    def collect(self) -> None:
        """Reads the marks that the device has passed."""
        ...


class AcceleratorClock:
    """Events of torch's accelerator (cuda, xpu, mps). Times count from the first mark."""

    def __init__(self, event_type: Any, max_pending: int = 4096) -> None:
        self._event_type = event_type
        self._origin: DeviceMark | None = None
        self._pending: deque[DeviceMark] = deque(maxlen=max_pending)

    def mark(self) -> DeviceMark:
        event = self._event_type(enable_timing=True)
        event.record()
        mark = DeviceMark(event)
        if self._origin is None:
            self._origin = mark
        self._pending.append(mark)
        return mark

    def collect(self) -> None:
        pending, origin = self._pending, self._origin
        while pending and origin is not None and pending[0].handle.query():
            mark = pending.popleft()
            mark.at_ms = float(origin.handle.elapsed_time(mark.handle)) if mark is not origin else 0.0
            if mark is not origin:
                mark.handle = None


def make_device_clock() -> DeviceClock | None:
    """Returns the accelerator's clock, or None where torch has no accelerator: the CPU has only the host's timeline."""
    import torch

    if torch.accelerator.is_available():
        # A bare torch.Event belongs to the current accelerator since 2.4
        return AcceleratorClock(torch.Event)
    return None
