"""The device clock with simulated events, without a device."""

from __future__ import annotations

from slipstream.seams.device_clock import AcceleratorClock


class MadeEvent:
    """An event of a device that lags behind the host."""

    device_ms = 0.0
    host_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_ms = MadeEvent.host_ms

    def query(self) -> bool:
        return self.at_ms <= MadeEvent.device_ms

    def elapsed_time(self, other: MadeEvent) -> float:
        return other.at_ms - self.at_ms


def test_marks_are_read_when_the_device_has_passed_them_and_not_before() -> None:
    clock = AcceleratorClock(MadeEvent)
    MadeEvent.host_ms, MadeEvent.device_ms = 10.0, 0.0
    first = clock.mark()
    MadeEvent.host_ms = 25.0
    second = clock.mark()
    clock.collect()
    assert first.at_ms is None and second.at_ms is None
    MadeEvent.device_ms = 10.0
    clock.collect()
    assert first.at_ms == 0.0 and second.at_ms is None
    MadeEvent.device_ms = 30.0
    clock.collect()
    assert second.at_ms == 15.0 and second.handle is None
