"""A `memory` run in this process: what it observes of a training script, and that it stops the script."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from slipstream.memory.schedule import AllocatorSnapshot, MemorySchedule
from slipstream.observe.anatomy.quiet_profiler import QuietProfile
from slipstream.records import Ending, Footprint, Told
from slipstream.seams.stop import StopTrial
from slipstream.trial.lifecycle import ScriptRun, TrialSettings, start_run

SCHEDULE = "slipstream.memory.schedule:MemorySchedule"
DATA = TensorDataset(torch.randn(60, 16), torch.randint(0, 4, (60,)))


def train(data: Dataset[Any] = DATA, batch_size: int = 16, fixed: int = 0, num_workers: int = 0) -> None:
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        for inputs, labels in DataLoader(data, batch_size, num_workers=num_workers):
            outputs = model(inputs.view(fixed, 16) if fixed else inputs)
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, labels).backward()
            optimizer.step()


def run_memory(
    *args: Any, seconds: float = 60, **kwargs: Any
) -> tuple[list[Footprint], list[str], ScriptRun, BaseException | None]:
    started = start_run(TrialSettings(mode="check", schedule=SCHEDULE, seconds=60))
    raised: BaseException | None = None
    try:
        train(*args, **kwargs)
    except BaseException as error:
        raised = error
    reason: Any = "finished" if raised is None else "stopped" if isinstance(raised, StopTrial) else "raised"
    started.leave(started.excuse(Ending(reason, 0, 0.0)))
    reports = [message for _, message in started.messages if isinstance(message, Told)]
    return (
        [t.footprint for t in reports if t.footprint is not None],
        [t.note for t in reports if t.note],
        started,
        raised,
    )


def test_the_own_batch_a_half_and_a_quarter_are_observed() -> None:
    footprints, notes, started, raised = run_memory()
    assert isinstance(raised, StopTrial)
    assert [footprint.batch_size for footprint in footprints] == [16, 8, 4]  # never the short batch of 12 at the end
    peaks = [footprint.peak_bytes for footprint in footprints]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] > peaks[-1]
    assert not notes and not started.complaints
    assert footprints[0].kinds["inputs"] >= 16 * 16 * 4


def test_a_script_that_fails_on_smaller_batches() -> None:
    footprints, notes, _, raised = run_memory(TensorDataset(torch.randn(64, 16), torch.zeros(64).long()), fixed=16)
    assert isinstance(raised, RuntimeError)  # view(16, 16) of eight samples
    assert [footprint.batch_size for footprint in footprints] == [16]
    assert any(note.startswith("no forecast for other batch sizes: the script ended") for note in notes)


def test_a_run_that_ends_before_batches_are_cut_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the time ends, the note does not say that the script failed on a smaller batch."""
    monkeypatch.setattr(MemorySchedule, "_is_late", lambda _: True)
    _, notes, _, _ = run_memory(TensorDataset(torch.randn(64, 16), torch.zeros(64).long()), fixed=16)
    assert any("60 seconds ended" in note and "--seconds" in note for note in notes)


def test_rows_passed_to_a_loss_are_not_the_batch() -> None:
    """A language model has no loader here. Its five sequences of seven tokens are 35 rows for the loss."""
    started = start_run(TrialSettings(mode="check", schedule=SCHEDULE, seconds=60))
    model, criterion = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = torch.randint(0, 11, (5, 7))
    with pytest.raises(StopTrial):
        for _ in range(40):
            optimizer.zero_grad()
            criterion(model(tokens).reshape(-1, 11), tokens.reshape(-1)).backward()
            optimizer.step()
    started.leave(Ending("stopped", 0, 0.0))
    reports = [message.footprint for _, message in started.messages if isinstance(message, Told) and message.footprint]
    assert reports[0].batch_size == 5


def test_exceptions_of_the_script_are_not_our_fault() -> None:
    started = start_run(TrialSettings(mode="check", schedule=SCHEDULE))
    ending = Ending("raised", 1, 0.0, "ValueError: ours")
    assert started.excuse(ending) == ending
    started.leave(ending)


@pytest.mark.timeout(60)
def test_workers_do_not_start_under_a_profiler() -> None:
    footprints, _, started, _ = run_memory(batch_size=15, num_workers=1)
    assert footprints[0].batch_size == 15 and not started.complaints
    assert footprints[0].kinds["inputs"] >= 15 * 16 * 4  # they come in shared memory


def test_a_whole_step_passes_between_two_profilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step ends inside a range that torch opened under the profiler of that step."""
    calls: list[str] = []
    start, end, step = QuietProfile.start, QuietProfile.end, torch.optim.SGD.zero_grad
    monkeypatch.setattr(QuietProfile, "start", lambda self: (calls.append("start"), start(self))[1])
    monkeypatch.setattr(QuietProfile, "end", lambda self: (calls.append("end"), end(self))[1])
    monkeypatch.setattr(torch.optim.SGD, "zero_grad", lambda self: (calls.append("step"), step(self))[1])
    footprints = run_memory()[0]
    assert len(footprints) == 3 and calls.count("start") >= 3
    assert not any(one == ("end", "start") for one in pairwise(calls))


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
