"""The device clock with a made device, whose time the test sets. `tests/device` runs it on simulated CUDA."""

from __future__ import annotations

import struct
from collections import defaultdict

import pytest

from slipstream.seams.device_clock import AcceleratorClock, DeviceMark


class MadeDevice:
    """A device that lags behind the host. Both times are in ms."""

    def __init__(self) -> None:
        self.host_ms = self.device_ms = 0.0
        self.stream = "default"
        self.captures = False
        self.num_events = 0
        self.num_queries = 0

    def new_event(self) -> MadeEvent:
        self.num_events += 1
        return MadeEvent(self)

    def current_stream(self) -> str:
        return self.stream

    def is_capturing(self) -> bool:
        return self.captures


class MadeEvent:
    def __init__(self, device: MadeDevice) -> None:
        self.device = device
        self.at_ms = 0.0

    def record(self, stream: str) -> None:
        assert not self.device.captures
        self.at_ms = self.device.host_ms

    def query(self) -> bool:
        assert not self.device.captures, "this makes the capture invalid"
        self.device.num_queries += 1
        return self.at_ms <= self.device.device_ms

    def elapsed_time(self, other: MadeEvent) -> float:
        """A float32, as CUDA returns."""
        value: float = struct.unpack("f", struct.pack("f", other.at_ms - self.at_ms))[0]
        return value


def _mark(clock: AcceleratorClock) -> DeviceMark:
    mark = clock.mark()
    assert mark is not None
    return mark


def test_marks_are_read_when_the_device_has_passed_them_and_not_before() -> None:
    device = MadeDevice()
    clock = AcceleratorClock(device)
    device.host_ms, device.device_ms = 10.0, 0.0
    first = _mark(clock)
    device.host_ms = 25.0
    second = _mark(clock)
    clock.collect()
    assert first.at_ms is None and second.at_ms is None
    device.device_ms = 10.0
    clock.collect()
    assert first.at_ms == 0.0 and second.at_ms is None
    device.device_ms = 30.0
    clock.collect()
    assert second.at_ms == 15.0 and second.handle is None


def test_every_mark_of_short_steps_is_read_with_few_events() -> None:
    device = MadeDevice()
    clock = AcceleratorClock(device)
    unread = []
    for step in range(100_000):
        for part in range(4):
            device.host_ms = 0.5 * step + 0.1 * part
            device.device_ms = device.host_ms - 20  # forty steps behind
            unread.append(_mark(clock))
        if step % 1000 == 0:
            unread = [mark for mark in unread if mark.at_ms is None]
            assert len(unread) < 500
    device.device_ms = device.host_ms
    clock.collect()
    assert all(mark.at_ms is not None for mark in unread)
    assert device.num_events < 500
    assert device.num_queries < 400_000 / 4


def test_ten_hours_keep_microseconds() -> None:
    device = MadeDevice()
    clock = AcceleratorClock(device)
    for second in range(36_000):
        device.host_ms = device.device_ms = second * 1000.0
        start = _mark(clock)
        device.host_ms = device.device_ms = second * 1000.0 + 1.3
        end = _mark(clock)
        clock.collect()
        assert start.at_ms is not None and end.at_ms is not None
        assert end.at_ms - start.at_ms == pytest.approx(1.3, abs=1e-3)
    assert end.at_ms == pytest.approx(device.host_ms, abs=10)


def test_streams_are_read_each_in_their_order() -> None:
    device = MadeDevice()
    clock = AcceleratorClock(device)
    marks = defaultdict(list)
    for at_ms, stream in ((1.0, "default"), (90.0, "copies"), (2.0, "default"), (91.0, "copies")):
        device.host_ms, device.stream = at_ms, stream
        marks[stream].append(_mark(clock))
    device.device_ms = 50.0
    clock.collect()
    assert [mark.at_ms for mark in marks["default"]] == [0.0, 1.0]
    assert [mark.at_ms for mark in marks["copies"]] == [None, None]


def test_nothing_is_recorded_or_read_during_a_graph_capture() -> None:
    device = MadeDevice()
    clock = AcceleratorClock(device)
    before = _mark(clock)
    device.captures = True
    assert clock.mark() is None
    clock.collect()
    assert before.at_ms is None
    device.captures = False
    clock.collect()
    assert before.at_ms == 0.0


def test_marks_of_a_device_that_hangs_are_given_up() -> None:
    device = MadeDevice()
    clock = AcceleratorClock(device, max_pending=100)
    device.device_ms = -1.0
    marks = [_mark(clock) for _ in range(300)]
    assert [mark.is_lost for mark in marks] == [True] * 200 + [False] * 100
