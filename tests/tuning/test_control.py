from __future__ import annotations

import random

import pytest
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.control import NoiseControl

from slipstream.records import BlockTiming, Choice, Recipe
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


def test_a_quiet_machine_requires_only_the_margin() -> None:
    noise = _noise(1.0)
    assert noise.margin(BASE) == 0.01 and noise.note() == ""


@pytest.mark.parametrize(("ratio", "word"), [(1.06, "6% faster"), (0.94, "6% slower")])
def test_a_control_that_differs_is_reported_and_raises_the_margin(ratio: float, word: str) -> None:
    noise = _noise(ratio)
    assert noise.note() == f"This machine was too noisy to tell: the A/A control, which changes nothing, seems {word}."
    speed = noise.speed()
    assert speed is not None
    assert noise.margin(BASE) >= max(abs(speed.low - 1), abs(speed.high - 1)), (
        "the far end of the interval, not its middle"
    )


def test_few_rounds_of_the_control_do_not_raise_the_margin() -> None:
    assert _noise(1.5, num_rounds=3).margin(BASE) == 0.01


def test_a_control_that_never_ran_is_reported() -> None:
    assert "did not run" in _noise(1.0, num_rounds=0).note()
    assert NoiseControl(0.01).note() == "", "no candidate, no control"


def test_the_worst_of_several_controls_counts() -> None:
    noise, other = _noise(1.0), _noise(1.06)
    noise.watch(other._controls[0])
    assert "6% faster" in noise.note() and noise.margin(BASE) > 0.05
