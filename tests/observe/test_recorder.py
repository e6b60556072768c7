"""Short steps are counted several at a time, and every step is counted eventually."""

from __future__ import annotations

from slipstream.observe.recorder import Recorder
from slipstream.testing.fake_clock import FakeClock
from slipstream.wire.spool import MemorySink


class StepCounts:
    def __init__(self) -> None:
        self.counted: list[int] = []

    def on_steps(self, num: int) -> None:
        self.counted.append(num)

    def on_pulse(self) -> None: ...


def test_steps_shorter_than_the_counting_delay_are_counted() -> None:
    """Without a loader, module calls take the slow path, and the collected events are passed on several times within
    the delay of 25 ms."""
    clock = FakeClock()
    recorder = Recorder(MemorySink(), clock)
    recorder.patience_ns = 25_000_000
    counts = StepCounts()
    recorder.add_listener(counts)
    for _ in range(400):
        for kind in ("forward", "forward", "backward"):
            token = recorder.enter(kind)
            clock.advance(0.15)
            recorder.leave(token, kind, 0, training=True, grad=True)  # type: ignore[arg-type]
        start_ns = recorder.now_ns()
        clock.advance(0.05)
        recorder.emit(("optimizer", 0, start_ns, recorder.now_ns()))  # as the fast path does
        if recorder.now_ns() >= recorder.shortcut.due_ns:
            recorder.count()
    assert sum(counts.counted) > 350 and len(counts.counted) < 20
