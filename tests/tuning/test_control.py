from __future__ import annotations

import random

import pytest

from slipstream.records import BlockTiming, Choice, Recipe
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.control import NoiseControl
from slipstream.tuning.trials import RecipeTrials

BASE, CONTROL = RecipeTrials("base", Recipe()), RecipeTrials("twin", Recipe((Choice("nothing"),)))


def _noise(ratio: float, spread: float = 0.005, num_rounds: int = 24) -> NoiseControl:
    noise = NoiseControl(0.01)
    control = Comparison(CONTROL, BASE, alpha=0.05, margin=0.01, floor=lambda: noise.margin(BASE), goal="control")
    noise.watch(control)
    draws = random.Random(1)
    for round in range(num_rounds):
        times = [draws.gauss(1.0, spread), draws.gauss(1.0, spread) / ratio]
        timings = zip((BASE, CONTROL), times, strict=True)
        control.add({id(trials): BlockTiming(0, round, 0, 1, seconds, 0) for trials, seconds in timings})
    return noise


def test_a_quiet_machine_asks_for_the_margin_alone() -> None:
    noise = _noise(1.0)
    assert noise.margin(BASE) == 0.01 and noise.note() == ""


@pytest.mark.parametrize(("ratio", "word"), [(1.06, "win 6%"), (0.94, "lose 6%")])
def test_a_control_that_wins_is_said_and_raises_the_bar(ratio: float, word: str) -> None:
    noise = _noise(ratio)
    assert noise.note() == f"This machine was too noisy to tell: nothing at all seems to {word}."
    speed = noise.speed()
    assert speed is not None
    assert noise.margin(BASE) >= max(abs(speed.low - 1), abs(speed.high - 1)), "all of the interval, not its middle"


def test_few_rounds_of_the_control_raise_nothing() -> None:
    assert _noise(1.5, num_rounds=3).margin(BASE) == 0.01


def test_a_control_that_never_rode_is_said() -> None:
    assert "did not ride" in _noise(1.0, num_rounds=0).note()
    assert NoiseControl(0.01).note() == "", "no candidate, no control"


def test_the_worst_of_several_controls_stands() -> None:
    noise, other = _noise(1.0), _noise(1.06)
    noise.watch(other._controls[0])
    assert "win 6%" in noise.note() and noise.margin(BASE) > 0.05
