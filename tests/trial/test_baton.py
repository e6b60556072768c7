"""The trial's side of the baton, with a thread as the backend: what is counted, when the script pauses, and which
process holds the baton."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import torch

from slipstream.records import (
    Ending,
    Recipe,
    TechniqueNote,
)
from slipstream.seams import data_threads
from slipstream.seams.patching import Patches
from slipstream.seams.stop import StopTrial
from slipstream.techniques._core.apply_recipe import apply_recipe
from slipstream.trial.baton import Baton, num_compiled
from slipstream.trial.epoch_starts import EpochStarts
from slipstream.trial.hooked_step_counter import HookedStepCounter
from slipstream.trial.timed_trial import TimedTrial
from slipstream.wire.protocol import (
    Finished,
    Go,
    Joined,
    Report,
    Standing,
    Stop,
    Tell,
    Ticked,
    Welcome,
    Wire,
    WireMessage,
    listen,
)

WARM_UP = 3


class FakeBackend:
    """The backend. It sends the given answers when the trial is paused, and stores the messages that it receives."""

    def __init__(self, path: Path, answers: list[WireMessage], warm_after: int = WARM_UP + 1) -> None:
        self.received: list[WireMessage] = []
        self._answers, self._warm_after = answers, warm_after
        self._listener = listen(path)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        wire = Wire(self._listener.accept()[0])
        while (message := wire.receive(20.0)) is not None:
            self.received.append(message)
            if isinstance(message, Joined | Ticked):
                num_ticked = sum(isinstance(one, Ticked) for one in self.received)
                wire.send(Welcome(num_ticked >= self._warm_after))
            elif isinstance(message, Standing | Report) and self._answers:
                wire.send(self._answers.pop(0))

    def close(self) -> list[WireMessage]:
        self._listener.close()
        self._thread.join(20.0)
        return self.received


@pytest.fixture
def patches() -> Iterator[Patches]:
    def fail(seam: str, fault: BaseException) -> None:
        raise AssertionError(seam) from fault

    patches = Patches(fail, lambda: False)
    yield patches
    patches.close()


class MadeTrial(TimedTrial):
    def __init__(self, report: Callable[[int], Report]) -> None:
        self._report = report

    def report(self, num_ticks: int) -> Report:
        return self._report(num_ticks)


def make_baton(path: Path, report: Callable[[int], Report] = lambda num_ticks: Report()) -> Baton:
    return Baton(str(path), WARM_UP, MadeTrial(report), EpochStarts())


def count_updates(baton: Baton, patches: Patches) -> None:
    HookedStepCounter(("optimizer",), "first", baton.tick).install(patches)


def train(num_steps: int, on_step: Callable[[int], None] = lambda step: None) -> None:
    model, critic = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    first, second = (torch.optim.SGD(m.parameters(), 0.1) for m in (model, critic))
    for step in range(num_steps):
        model(torch.ones(1, 2)).sum().backward()
        first.step()
        second.step()  # belongs to the same step
        on_step(step)


def test_blocks_have_the_requested_length_and_then_the_script_stops(tmp_path: Path, patches: Patches) -> None:
    backend = FakeBackend(tmp_path / "baton", [Tell(), Go(4, 2), Go(1, 0), Stop()])
    baton = make_baton(tmp_path / "baton", lambda num_ticks: Report([(num_ticks, 0.0)]))
    count_updates(baton, patches)
    steps: list[int] = []
    with pytest.raises(StopTrial):
        train(100, steps.append)
    with pytest.raises(StopTrial):
        train(1)  # the script caught the first exception
    baton.finish(Ending("stopped", 0, 0.0))
    patches.close()
    baton._wire.close()  # type: ignore[union-attr]
    received = backend.close()
    assert isinstance(received[0], Joined) and received[0].process == os.getpid() and received[0].at_s > 0.0
    assert [type(message) for message in received[1:5]] == [Ticked, Ticked, Ticked, Standing]
    assert received[5] == Report([(3, 0.0)])  # requested only after the warm-up
    blocks = [(m.first_step, m.num_steps) for m in received if isinstance(m, Standing)]
    # three steps of warm-up, two of lead-in, four timed, then one timed without lead-in
    assert blocks == [(3, 0), (5, 4), (9, 1)]
    assert len(steps) == 9 and baton.num_ticks == 11  # the tenth was stopped inside its update
    assert all(m.seconds > 0 for m in received if isinstance(m, Standing) and m.num_steps)


@pytest.mark.parametrize(
    ("go", "block"),
    [
        (Go(4, 2, 0.0), (4, 1)),  # the limit passes in the lead-in: one step is timed
        (Go(4, 0, 0.0), (3, 1)),
        (Go(4, 2, 1000.0), (5, 4)),
    ],
)
def test_a_block_ends_with_the_step_that_reaches_its_limit(
    tmp_path: Path, patches: Patches, go: Go, block: tuple[int, int]
) -> None:
    backend = FakeBackend(tmp_path / "baton", [go, Go(3, 1), Stop()])
    baton = make_baton(tmp_path / "baton")
    count_updates(baton, patches)
    with pytest.raises(StopTrial):
        train(100)
    patches.close()
    baton._wire.close()  # type: ignore[union-attr]
    blocks = [(m.first_step, m.num_steps) for m in backend.close() if isinstance(m, Standing)]
    assert blocks == [(3, 0), block, (sum(block) + 1, 3)], "the limit of a block ends with it"


def test_the_backend_may_end_the_warm_up_early(tmp_path: Path, patches: Patches) -> None:
    backend = FakeBackend(tmp_path / "baton", [Go(2, 1), Stop()], warm_after=2)
    baton = make_baton(tmp_path / "baton")
    count_updates(baton, patches)
    with pytest.raises(StopTrial):
        train(100)
    patches.close()
    baton._wire.close()  # type: ignore[union-attr]
    received = backend.close()
    assert [type(message) for message in received[:4]] == [Joined, Ticked, Ticked, Standing]
    assert received[3] == Standing(2)


def test_when_the_first_optimizer_has_finished_the_steps_of_the_next_one_count(
    tmp_path: Path, patches: Patches
) -> None:
    """One model is trained after another, and the first model stays alive."""
    baton = make_baton(tmp_path / "no_socket")
    count_updates(baton, patches)
    first, second = (torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), 0.1) for _ in range(2))
    counts = []
    for optimizer, num_steps in ((first, 5), (second, 199), (first, 1), (second, 200), (second, 10), (first, 3)):
        for _ in range(num_steps):
            optimizer.step()
        counts.append(baton.num_ticks)
    assert counts == [5, 5, 6, 7, 17, 17], "while the first optimizer steps, the second belongs to the same step"


def test_data_threads_are_held_exactly_while_the_script_is_paused(tmp_path: Path, patches: Patches) -> None:
    backend = FakeBackend(tmp_path / "baton", [Tell(), Go(50, 1)])
    baton = make_baton(tmp_path / "baton", lambda num_ticks: Report([(0, float(data_threads.is_held()))]))
    count_updates(baton, patches)
    held: list[bool] = []
    train(6, lambda step: held.append(data_threads.is_held()))
    patches.close()
    baton._wire.close()  # type: ignore[union-attr]
    assert Report([(0, 1.0)]) in backend.close() and held == [False] * 6


def test_the_end_of_the_script_is_reported(tmp_path: Path, patches: Patches) -> None:
    backend = FakeBackend(tmp_path / "baton", [Go(50, 1)])
    baton = make_baton(tmp_path / "baton")
    count_updates(baton, patches)
    train(6)
    ending = Ending("raised", 1, 0.0, "ValueError: mine")
    baton.finish(ending)
    patches.close()
    baton._wire.close()  # type: ignore[union-attr]
    assert backend.close()[-1] == Finished(ending, Report())


def test_an_exception_before_the_first_tick_is_reported_on_request(tmp_path: Path) -> None:
    """A memory fit may run out of memory in its first step, after one of its techniques has declined."""
    raised = Ending("raised", 1, 0.1, "RuntimeError: out of memory")
    report = Report(declined=[TechniqueNote("pieces", "batch norm")])
    backend = FakeBackend(tmp_path / "baton", [])
    baton = make_baton(tmp_path / "baton", lambda num_ticks: report)
    baton.finish(raised)
    assert not baton.is_held
    baton.finish(raised, is_always_told=True)
    baton._wire.close()  # type: ignore[union-attr]
    backend._thread.join(20.0)
    assert backend.close() == [Finished(raised, report)]


def test_the_second_process_of_a_trial_runs_without_the_baton(tmp_path: Path, patches: Patches) -> None:
    baton = make_baton(tmp_path / "no_socket")
    count_updates(baton, patches)
    train(5)
    assert baton.num_ticks == 5 and not baton.is_held


def test_a_fault_of_slipstream_at_a_tick_does_not_reach_the_script(
    tmp_path: Path, patches: Patches, capsys: pytest.CaptureFixture[str]
) -> None:
    baton = make_baton(tmp_path / "no_socket")
    count_updates(baton, patches)

    def fail() -> None:
        raise RuntimeError("ours")

    baton._next = fail
    train(2)
    assert "could not time this trial: RuntimeError: ours" in capsys.readouterr().err


@pytest.mark.parametrize("tick", ["backward", "forward", "input"])
def test_other_ticks(tmp_path: Path, patches: Patches, tick: str) -> None:
    baton = make_baton(tmp_path / "no_socket")
    context = apply_recipe(Recipe(), patches, lambda seam, fault: None)
    HookedStepCounter((tick,), "first", baton.tick).install(patches, context)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    model, probe = torch.nn.Sequential(torch.nn.Linear(2, 1)), torch.nn.Linear(2, 1)
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=2):
        loss = model(batch).sum()
        probe(batch)  # another module: part of the same step
        loss.backward()
    assert baton.num_ticks == 4


def test_a_forked_child_does_not_use_its_parents_baton(tmp_path: Path, patches: Patches) -> None:
    backend = FakeBackend(tmp_path / "baton", [])
    baton = make_baton(tmp_path / "baton")
    count_updates(baton, patches)
    train(1)
    assert baton.is_held
    wire = baton._wire
    baton.forget()
    train(WARM_UP + 1)  # would wait forever with the baton
    assert not baton.is_held
    assert wire is not None
    wire.close()
    assert [type(message) for message in backend.close()] == [Joined, Ticked]


def test_compilation_is_counted() -> None:
    before = num_compiled()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    once = num_compiled()
    assert once != before
    torch.ones(1) + 1
    assert num_compiled() == once


def test_workers_are_stopped_before_the_backend_knows_and_continue_with_the_script(
    tmp_path: Path, patches: Patches
) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100,), daemon=True)
    worker.start()
    seen: list[str] = []

    def state() -> str:
        return psutil.Process(worker.pid).status()

    def report(num_ticks: int) -> Report:
        deadline_s = time.monotonic() + 5.0
        while state() != "stopped" and time.monotonic() < deadline_s:  # a signal takes effect with a delay
            time.sleep(0.001)
        seen.append(state())
        return Report()

    backend = FakeBackend(tmp_path / "baton", [Tell(), Go(2, 1), Tell(), Stop()])
    baton = make_baton(tmp_path / "baton", report)
    count_updates(baton, patches)
    try:
        with pytest.raises(StopTrial):
            train(100, lambda step: seen.append(state()) if step == WARM_UP else None)
        assert seen[0] == seen[2] == "stopped" and seen[1] != "stopped"
        assert state() != "stopped", "it can end with the script"
    finally:
        worker.kill()
        worker.join()
        baton.finish(Ending("stopped", 0, 0.0))
        patches.close()
        baton._wire.close()  # type: ignore[union-attr]
        backend.close()
