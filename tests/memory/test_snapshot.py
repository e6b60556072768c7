"""When torch's snapshot is recorded and kept. Without CUDA: calls of torch.cuda.memory are recorded by a stub."""

from __future__ import annotations

from typing import Any

from slipstream.memory.snapshot import AllocatorSnapshot


class RecordedCalls:
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _record_memory_history(self, enabled: Any = "all", **kwargs: Any) -> None:
        self.calls.append(enabled)

    def _dump_snapshot(self, filename: str) -> None:
        self.calls.append(filename)


def test_one_recording_of_the_observed_steps() -> None:
    asked = RecordedCalls()
    snapshot = AllocatorSnapshot("step.pickle", asked)
    for _ in range(2):  # a failed attempt and a successful one
        snapshot.start("cuda:0")
    snapshot.keep()
    snapshot.start("cuda:0")  # of a smaller batch
    snapshot.keep()
    snapshot.end()
    assert asked.calls == ["all", "step.pickle", None]


def test_a_stopped_run_stops_recording() -> None:
    asked = RecordedCalls()
    snapshot = AllocatorSnapshot("step.pickle", asked)
    snapshot.start("cuda:0")
    snapshot.end()
    assert asked.calls == ["all", None]


def test_nothing_is_recorded_on_a_cpu_or_without_a_path() -> None:
    asked = RecordedCalls()
    for path, device in (("step.pickle", "cpu"), ("", "cuda:0")):
        snapshot = AllocatorSnapshot(path, asked)
        snapshot.start(device)
        snapshot.keep()
    assert not asked.calls
