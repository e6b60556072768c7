"""When torch's snapshot is recorded, and when kept. No CUDA here: what torch.cuda.memory would be asked is noted."""

from __future__ import annotations

from typing import Any

from slipstream.memory.snapshot import AllocatorSnapshot


class Asked:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _record_memory_history(self, enabled: Any = "all", **kwargs: Any) -> None:
        self.calls.append(enabled)

    def _dump_snapshot(self, filename: str) -> None:
        self.calls.append(filename)


def test_one_recording_of_the_observed_steps() -> None:
    asked = Asked()
    snapshot = AllocatorSnapshot("step.pickle", asked)
    for _ in range(2):  # an attempt that came to nothing, and one that did
        snapshot.start("cuda:0")
    snapshot.keep()
    snapshot.start("cuda:0")  # of a smaller batch
    snapshot.keep()
    snapshot.end()
    assert asked.calls == ["all", "step.pickle", None]


def test_a_ride_that_is_broken_off_stops_recording() -> None:
    asked = Asked()
    snapshot = AllocatorSnapshot("step.pickle", asked)
    snapshot.start("cuda:0")
    snapshot.end()
    assert asked.calls == ["all", None]


def test_nothing_is_asked_on_a_cpu_or_unasked() -> None:
    asked = Asked()
    for path, device in (("step.pickle", "cpu"), ("", "cuda:0")):
        snapshot = AllocatorSnapshot(path, asked)
        snapshot.start(device)
        snapshot.keep()
    assert not asked.calls
