from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from slipstream.records import Choice, Failure, Recipe
from slipstream.tuning.candidates import Arm, Candidate
from slipstream.tuning.successive_halving import ETA, FEW, Entry, halve, ranked, rung_sizes
from slipstream.tuning.trials import RecipeTrials


def _entry(technique: Any, name: str) -> Entry:
    recipe = Recipe((Choice(name),))
    arm = Arm(Candidate(name, technique().CARD, (True,)), Choice(name), recipe)
    return Entry(arm, RecipeTrials("candidate", recipe))


class Races:
    """Adds the true gain to every entry that races, or fails it, and records the rungs."""

    def __init__(self, gains: Mapping[str, float], failing: Sequence[str] = ()) -> None:
        self._gains, self._failing = gains, failing
        self.rungs: list[tuple[list[str], int]] = []

    def __call__(self, entries: Sequence[Entry], num_rounds: int) -> None:
        self.rungs.append(([entry.arm.choice.technique for entry in entries], num_rounds))
        for entry in entries:
            name = entry.arm.choice.technique
            if name in self._failing:
                entry.failure = Failure("raised")
            else:
                entry.gains = [*entry.gains, (self._gains.get(name, 0.0), num_rounds)]


def test_every_rung_has_half_of_the_arms_and_twice_the_rounds() -> None:
    assert rung_sizes(24, 2) == [(24, 2), (12, 4), (6, 8)]
    assert rung_sizes(13, 3) == [(13, 3), (7, 6), (6, 12)]
    assert rung_sizes(0, 2) == []
    assert ETA == 2


@pytest.mark.parametrize("num_arms", range(1, FEW + 1))
def test_even_a_few_arms_race_in_two_processes(num_arms: int) -> None:
    assert rung_sizes(num_arms, 2) == [(num_arms, 2), (num_arms, 4)]


def test_the_better_arms_go_on(technique: Any) -> None:
    gains = {f"a{number:02}": number / 100 for number in range(14)}
    entries, races = [_entry(technique, name) for name in gains], Races(gains)
    finalists = halve(entries, [], 2, races)
    assert [(len(names), num_rounds) for names, num_rounds in races.rungs] == [(14, 2), (7, 4), (6, 8)]
    assert [entry.arm.choice.technique for entry in finalists] == sorted(gains, reverse=True)[:6]
    assert all(entry.is_on_last_rung for entry in finalists)
    assert not any(entry.is_on_last_rung for entry in entries if entry not in finalists)


def test_late_arms_join_on_the_last_rung(technique: Any) -> None:
    entries, late = [_entry(technique, f"a{number}") for number in range(8)], [_entry(technique, "late")]
    races = Races({"late": 0.5})
    finalists = halve(entries, late, 2, races)
    assert ["late" in names for names, _ in races.rungs] == [False, True]
    assert finalists[0] is late[0] and finalists[0].is_on_last_rung


def test_late_arms_race_without_any_others_and_after_all_others_failed(technique: Any) -> None:
    late, races = [_entry(technique, "late")], Races({"late": 0.5})
    assert halve([], late, 2, races) == late
    assert races.rungs == [(["late"], 2 * ETA)]
    late, races = [_entry(technique, "late")], Races({"late": 0.5}, failing=["a"])
    assert halve([_entry(technique, "a")], late, 2, races) == late
    assert [names for names, _ in races.rungs] == [["a"], ["late"]]


def test_an_arm_that_fails_leaves(technique: Any) -> None:
    entries, races = [_entry(technique, name) for name in "abc"], Races({"a": 0.1, "c": 0.3}, failing=["b"])
    assert [entry.arm.choice.technique for entry in halve(entries, [], 2, races)] == ["c", "a"]
    assert [names for names, _ in races.rungs] == [["a", "b", "c"], ["c", "a"]]
    races = Races({}, failing="abc")
    assert halve([_entry(technique, name) for name in "abc"], [], 2, races) == []
    assert len(races.rungs) == 1, "none is left to race"


def test_the_gain_of_an_arm_weights_its_processes_by_the_root_of_their_rounds(technique: Any) -> None:
    entry = _entry(technique, "a")
    assert entry.gain is None and ranked([entry]) == []
    entry.gains = [(0.3, 1), (0.0, 4)]
    assert entry.gain == pytest.approx(0.1)
    assert math.isclose(ranked([entry])[0].gain or 0.0, 0.1)
