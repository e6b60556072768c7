"""What `run` says at the end: time saved against the measured base, without the pauses between steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.records import Ending
from slipstream.seams.patching import Patches
from slipstream.trial.lifecycle import ScriptRun, TrialSettings
from slipstream.trial.run_mode import last_words
from slipstream.trial.step_count import StepCount


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now_ns=0)
    monkeypatch.setattr("slipstream.trial.step_count.time", SimpleNamespace(perf_counter_ns=lambda: clock.now_ns))
    return clock


def updates(clock: Any, gaps_ms: list[float], num_optimizers: int = 1) -> StepCount:
    tally = StepCount()
    tally._early = None
    optimizers = [object() for _ in range(num_optimizers)]
    for index, gap_ms in enumerate(gaps_ms):
        clock.now_ns += int(gap_ms * 1e6)
        tally._after_update(optimizers[index % num_optimizers], None, None)
    return tally


def words(
    tally: StepCount | None,
    base_step_ms: float | None,
    declined: tuple[str, ...] = (),
    changes: tuple[str, ...] = (),
    told: tuple[Any, ...] = (),
) -> list[str]:
    ride = ScriptRun(TrialSettings(mode="run"))
    ride.tally = tally
    ride.context = SimpleNamespace(declined=list(declined), changes=list(changes), last_words=list(told))  # type: ignore[assignment]
    return list(last_words(ride, base_step_ms))


def test_techniques_have_a_last_word(clock: Any) -> None:
    [line] = words(updates(clock, [20.0] * 9), None, told=(lambda: "", lambda: "survived 2 shortages"))
    assert line.endswith(" steps/s); survived 2 shortages")


def test_steps_are_averaged_and_pauses_left_out(clock: Any) -> None:
    bursts = updates(clock, [1000.0, *[10.0, 30.0] * 50, 9000.0, *[10.0, 30.0] * 50])
    assert bursts.step_s() == pytest.approx(0.020), "neither the start nor the validation, but both kinds of step"


def test_two_optimizers_make_one_step(clock: Any) -> None:
    assert updates(clock, [5.0, 15.0] * 40, num_optimizers=2).step_s() == pytest.approx(0.020, rel=0.02)


@pytest.mark.parametrize("num_updates", [0, 1, 2])
def test_too_few_steps_say_nothing(clock: Any, num_updates: int) -> None:
    assert updates(clock, [10.0] * num_updates).step_s() is None


def test_time_saved(clock: Any) -> None:
    tally = updates(clock, [20.0] * 3001)
    [line] = words(tally, 50.0)
    assert line.startswith("slipstream: 3,001 steps in ")
    without = "that tune measured without the recipe"
    assert line.endswith(f"; 20.0 ms a step, in place of the 50.0 ms {without}: about 1.5 min saved")
    [line] = words(tally, 15.0)
    assert line.endswith(f"; 20.0 ms a step, no faster than the 15.0 ms {without}")
    [line] = words(tally, None)
    assert "saved" not in line and "tune" not in line


def test_what_was_not_applied_is_said(clock: Any) -> None:
    [_, line] = words(updates(clock, [20.0] * 5), None, ("compile: no compiler",))
    assert line == "slipstream: not applied: compile: no compiler"


def test_what_was_applied_but_not_everywhere_is_a_note(clock: Any) -> None:
    declined = ("workers: the loader of validation keeps none", "compile: no compiler")
    [_, note, refusal] = words(updates(clock, [20.0] * 5), None, declined, ("workers: num_workers 0 -> 2",))
    assert note == "slipstream: note: workers: the loader of validation keeps none"
    assert refusal == "slipstream: not applied: compile: no compiler"


def test_a_fault_while_leaving_is_said_and_stays_ours(capsys: pytest.CaptureFixture[str]) -> None:
    ride = ScriptRun(TrialSettings(mode="run"))
    ride.patches = Patches(ride.complain, lambda: False)
    undone: list[str] = []
    ride.patches.on_close(lambda: undone.append("the rest"))
    ride.patches.on_close(lambda: {}["ours"])
    ride.leave(Ending("finished", 0, 0.0))
    assert undone == ["the rest"] and "KeyError: 'ours'" in ride.complaints[0]
    assert "'leaving'" in capsys.readouterr().err
