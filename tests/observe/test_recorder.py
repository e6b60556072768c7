"""When steps are counted: short ones several at a time, and none of them never."""

from __future__ import annotations

from slipstream.observe.recorder import Recorder
from slipstream.testing.fake_clock import FakeClock
from slipstream.wire.spool import MemorySink


def test_steps_much_shorter_than_our_patience_are_counted_all_the_same() -> None:
    """Without a loader modules take the long way, and what has gathered goes out several times in those 25 ms."""
    clock = FakeClock()
    recorder = Recorder(MemorySink(), clock)
    recorder.patience_ns = 25_000_000
    counted: list[int] = []
    recorder.on_step = counted.append
    for _ in range(400):
        for kind in ("forward", "forward", "backward"):
            token = recorder.enter(kind)
            clock.advance(0.15)
            recorder.leave(token, kind, 0, training=True, grad=True)  # type: ignore[arg-type]
        start_ns = recorder.now_ns()
        clock.advance(0.05)
        recorder.emit(("optimizer", 0, start_ns, recorder.now_ns()))  # as the shortcut does
        if recorder.now_ns() >= recorder.shortcut.due_ns:
            recorder.count()
    assert sum(counted) > 350 and len(counted) < 20
