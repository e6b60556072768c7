"""The lines that `run` prints at the end, with the time saved against the measured base, without pauses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream.records import (
    Ending,
    TechniqueNote,
)
from slipstream.seams.patching import Patches
from slipstream.trial.hooked_step_counter import HookedStepCounter
from slipstream.trial.lifecycle import ScriptRun, TrialSettings
from slipstream.trial.run_mode import last_words


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now_ns=0)
    monkeypatch.setattr(
        "slipstream.trial.hooked_step_counter.time", SimpleNamespace(perf_counter_ns=lambda: clock.now_ns)
    )
    return clock


def updates(clock: Any, gaps_ms: list[float], num_optimizers: int = 1) -> HookedStepCounter:
    step_counter = HookedStepCounter()
    optimizers = [torch.nn.Module() for _ in range(num_optimizers)]
    for index, gap_ms in enumerate(gaps_ms):
        clock.now_ns += int(gap_ms * 1e6)
        step_counter._after_update(optimizers[index % num_optimizers], None, None)
    return step_counter


def lines(
    step_counter: HookedStepCounter | None,
    base_step_ms: float | None,
    declined: tuple[TechniqueNote, ...] = (),
    changes: tuple[TechniqueNote, ...] = (),
    told: tuple[Any, ...] = (),
) -> list[str]:
    run = ScriptRun(TrialSettings(mode="run"))
    run.step_counter = step_counter
    run.context = SimpleNamespace(decline_notes=list(declined), change_notes=list(changes), last_words=list(told))  # type: ignore[assignment]
    return list(last_words(run, base_step_ms))


def test_techniques_add_to_the_summary_line(clock: Any) -> None:
    [line] = lines(updates(clock, [20.0] * 9), None, told=(lambda: "", lambda: "survived 2 shortages"))
    assert line.endswith(" steps/s); survived 2 shortages")


def test_the_mean_step_excludes_pauses(clock: Any) -> None:
    bursts = updates(clock, [1000.0, *[10.0, 30.0] * 50, 9000.0, *[10.0, 30.0] * 50])
    assert bursts.step_s() == pytest.approx(0.020), "without start-up and validation, with both kinds of step"


def test_updates_of_two_optimizers_are_one_step(clock: Any) -> None:
    assert updates(clock, [5.0, 15.0] * 40, num_optimizers=2).step_s() == pytest.approx(0.020, rel=0.02)


@pytest.mark.parametrize("num_updates", [0, 1, 2])
def test_too_few_steps_have_no_step_time(clock: Any, num_updates: int) -> None:
    assert updates(clock, [10.0] * num_updates).step_s() is None


def test_time_saved(clock: Any) -> None:
    step_counter = updates(clock, [20.0] * 3001)
    [line] = lines(step_counter, 50.0)
    assert line.startswith("slipstream: 3,001 steps in ")
    without = "that tune measured without the recipe"
    assert line.endswith(f"; 20.0 ms a step, in place of the 50.0 ms {without}: about 1.5 min saved")
    [line] = lines(step_counter, 15.0)
    assert line.endswith(f"; 20.0 ms a step, no faster than the 15.0 ms {without}")
    [line] = lines(step_counter, None)
    assert "saved" not in line and "tune" not in line


def test_a_technique_that_was_not_applied_is_reported(clock: Any) -> None:
    [_, line] = lines(updates(clock, [20.0] * 5), None, (TechniqueNote("compile", "no compiler"),))
    assert line == "slipstream: not applied: compile: no compiler"


def test_a_technique_that_was_not_applied_everywhere_is_a_note(clock: Any) -> None:
    declined = (
        TechniqueNote("workers", "the loader of validation keeps none"),
        TechniqueNote("compile", "no compiler"),
    )
    [_, note, refusal] = lines(
        updates(clock, [20.0] * 5), None, declined, (TechniqueNote("workers", "num_workers 0 -> 2"),)
    )
    assert note == "slipstream: note: workers: the loader of validation keeps none"
    assert refusal == "slipstream: not applied: compile: no compiler"


def test_a_fault_while_patches_are_undone_is_reported_and_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    run = ScriptRun(TrialSettings(mode="run"))
    run.patches = Patches(run.complain, lambda: False)
    undone: list[str] = []
    run.patches.on_close(lambda: undone.append("the rest"))
    run.patches.on_close(lambda: {}["ours"])
    run.leave(Ending("finished", 0, 0.0))
    assert undone == ["the rest"] and "KeyError: 'ours'" in run.complaints[0]
    assert "'leaving'" in capsys.readouterr().err
