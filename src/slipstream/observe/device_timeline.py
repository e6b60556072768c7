"""Steps on the device's timeline, from events whose times on the device are known.

The host launches work and returns before the device has done the work. So the time that a call takes on the host says
little. For example, a blocking copy waits for everything that was launched before it. Therefore the times of steps and
phases are read on the device. There a phase lasts from the end of the work launched before it to the end of its own
work. This includes the time in which the device had nothing to do because the host had not launched more.

The two clocks have different origins. The device reaches no mark before the host sets the mark. So the shortest delay
between setting and reaching a mark shows how the clocks correspond."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.observe.intervals import PHASE_OF_KIND, Interval, lay_out, share_out
from slipstream.records import Event

# If the device reaches a mark within this time after the launch of the mark, the device was waiting for the host. A
# launch takes 5 to 20 microseconds. On a busy host, a thread may lose its core between the launch and the reading of
# the clock. Therefore the time is at least this share of a step.
_CAUGHT_UP_MS = 0.1
_CAUGHT_UP_SHARE = 0.03


class DeviceStep(NamedTuple):
    phases: dict[str, float]
    idle: dict[str, float]  # by phase; upper bounds


class _Mark(NamedTuple):
    host_ms: float
    device_ms: float


class DeviceTimeline:
    """A step lasts from its first event on the device to the first event of the next step."""

    def __init__(
        self, events: Sequence[Event], evaluations: Sequence[tuple[int, int, list[Event]]], usual_step_ms: float
    ) -> None:
        self._starts = [(e.start_ns, e.device_start_ms) for e in events if e.device_start_ms is not None]
        marked = [_on_device(inside) for _, _, inside in evaluations]
        self._apart = [Interval(min(i.start for i in m), max(i.end for i in m), "apart") for m in marked if m]
        self._marks = sorted(_marks(events))
        self._offset_ms = min((mark.device_ms - mark.host_ms for mark in self._marks), default=0.0)
        self._caught_up_ms = max(_CAUGHT_UP_MS, _CAUGHT_UP_SHARE * usual_step_ms)
        self._gaps = list(self._find_gaps())

    def step(self, events: Sequence[Event], end_ns: int, apart: Sequence[Interval]) -> DeviceStep | None:
        """Returns the step with these events, or None if none of them has times on the device. `end_ns` is the end of
        the step on the host. `apart` contains the intervals that do not count, in ns on the host."""
        timed = _on_device([event for event in events if not event.kept])
        if not timed:
            return None
        start = min(interval.start for interval in timed)
        last = max(interval.end for interval in timed)
        position = bisect.bisect_left(self._starts, end_ns, key=lambda known: known[0])
        end = max(last, self._starts[position][1]) if position < len(self._starts) else last
        near = [interval for interval in self._apart if interval.end > start and interval.start < end]
        intervals = [*timed, *near, *(self._moved(interval) for interval in apart)]
        shares = share_out(intervals, start, end, "other")
        shares.pop("apart", None)
        pieces = lay_out(intervals, start, end, "other")
        return DeviceStep(shares, self._idle(pieces, start, end))

    def _moved(self, interval: Interval) -> Interval:
        """Returns the interval in which the device waits during this interval of the host. At the start of the host's
        interval, the device may still do work that was launched before."""
        start_ms, end_ms = interval.start / 1e6, interval.end / 1e6
        position = bisect.bisect_right(self._marks, start_ms, key=lambda mark: mark.host_ms)
        busy_until_ms = self._marks[position - 1].device_ms if position else start_ms + self._offset_ms
        moved_start_ms = max(start_ms + self._offset_ms, busy_until_ms)
        return Interval(moved_start_ms, max(moved_start_ms, end_ms + self._offset_ms), "apart")

    def _find_gaps(self) -> list[Interval]:
        """Returns the intervals between two marks if the device had nothing left to do at the second mark. The device
        may have computed in a part of the interval, so the interval is an upper bound of its waiting time."""
        gaps = []
        for mark, following in zip(self._marks, self._marks[1:], strict=False):
            delay_ms = following.device_ms - following.host_ms - self._offset_ms
            if delay_ms <= self._caught_up_ms and following.device_ms > mark.device_ms:
                gaps.append(Interval(mark.device_ms, following.device_ms, "idle"))
        return gaps

    def _idle(self, pieces: Sequence[Interval], start: float, end: float) -> dict[str, float]:
        first = bisect.bisect_right(self._gaps, start, key=lambda gap: gap.end)
        last = bisect.bisect_left(self._gaps, end, key=lambda gap: gap.start)
        idle: dict[str, float] = {}
        for gap in self._gaps[first:last]:
            for piece in pieces:
                shared_ms = min(gap.end, piece.end) - max(gap.start, piece.start)
                if shared_ms > 0 and piece.label not in ("apart", "transfer"):  # a copy is work of the device
                    idle[piece.label] = idle.get(piece.label, 0.0) + shared_ms
        return idle


def _marks(events: Sequence[Event]) -> list[_Mark]:
    starts = [_Mark(e.start_ns / 1e6, e.device_start_ms) for e in events if e.device_start_ms is not None]
    ends = [_Mark(e.end_ns / 1e6, e.device_end_ms) for e in events if e.device_end_ms is not None]
    return [*starts, *ends]


def _on_device(events: Sequence[Event]) -> list[Interval]:
    return [
        Interval(event.device_start_ms, event.device_end_ms, PHASE_OF_KIND[event.kind])
        for event in events
        if event.device_start_ms is not None and event.device_end_ms is not None and event.kind in PHASE_OF_KIND
    ]
