from __future__ import annotations

import math
import random
import statistics

import pytest
from slipstream.tuning.pace_model import NUM_SHARED, PaceModel, middle

from slipstream.records import (
    BlockTiming,
    Failure,
)

BASE, A, B = 1, 2, 3


def _timing(trial: int, seconds: float, **how: bool) -> BlockTiming:
    return BlockTiming(trial, 0, 0, 1, seconds, 0, **how)  # type: ignore[arg-type]


def _round(pace_model: PaceModel, paces: dict[int, float]) -> None:
    pace_model.add({trial: _timing(trial, seconds) for trial, seconds in paces.items()})


def test_the_pace_of_a_round_does_not_affect_gains() -> None:
    pace_model = PaceModel()
    for pace in (1.0, 3.0, 0.5, 2.0):
        _round(pace_model, {BASE: pace, A: pace * 0.8, B: pace * 1.25})
    assert pace_model.gain(A, BASE) == pytest.approx(math.log(1.25))
    assert pace_model.gain(B, BASE) == pytest.approx(-math.log(1.25))


def test_trials_that_never_shared_a_round_are_compared_through_others() -> None:
    pace_model = PaceModel()
    for _ in range(6):
        _round(pace_model, {BASE: 1.0, A: 0.8})
    for _ in range(6):
        _round(pace_model, {BASE: 4.0, B: 3.2})
    assert pace_model.gain(B, A) == pytest.approx(0.0, abs=1e-6)
    assert pace_model.num_rounds(BASE) == 12 and pace_model.num_rounds(A) == 6


def test_disturbed_and_failed_blocks_are_ignored() -> None:
    pace_model = PaceModel()
    _round(pace_model, {BASE: 1.0, A: 0.5})
    pace_model.add({BASE: _timing(BASE, 1.0), A: _timing(A, 9.0, is_disturbed=True)})
    pace_model.add({BASE: _timing(BASE, 1.0), A: BlockTiming(A, 0, 0, 0, 0.0, 0, failure=Failure("out"))})
    assert pace_model.num_rounds(A) == 1 and pace_model.num_rounds(BASE) == 1, "a single block shows nothing"
    assert pace_model.gain(A, BASE) == pytest.approx(math.log(2))


def test_an_outlier_has_little_weight() -> None:
    pace_model = PaceModel()
    for seconds in [0.8] * 11 + [8.0]:
        _round(pace_model, {BASE: 1.0, A: seconds})
    assert pace_model.gain(A, BASE) == pytest.approx(math.log(1.25), abs=0.02)


def test_the_model_is_more_precise_than_pairs() -> None:
    draws, by_pace_model, by_pairs = random.Random(3), list[float](), list[float]()
    for _ in range(80):
        pace_model, pairs = PaceModel(), []
        for number in range(60):
            logs = {trial: draws.gauss(0.0, 0.1) for trial in (BASE, *((A,) if number < 12 else ()), 4, 5, 6, 7)}
            if A in logs:
                pairs.append(logs[BASE] - logs[A])
            _round(pace_model, {trial: math.exp(log) for trial, log in logs.items()})
        by_pace_model.append(pace_model.gain(A, BASE))
        by_pairs.append(middle(pairs))
    assert statistics.pstdev(by_pace_model) < 0.85 * statistics.pstdev(by_pairs)


def test_the_uncertainty_matches_the_errors() -> None:
    draws, errors, uncertainties = random.Random(5), list[float](), list[float]()
    for _ in range(60):
        pace_model = PaceModel()
        for _ in range(30):
            _round(pace_model, {trial: math.exp(draws.gauss(0.0, 0.1)) for trial in range(4)})
        errors.append(pace_model.gain(1, 0))
        uncertainties.append(pace_model.uncertainty(1, 0))
    assert statistics.fmean(uncertainties) == pytest.approx(statistics.pstdev(errors), rel=0.35)


def test_a_few_rounds_that_agree_by_chance_are_still_uncertain() -> None:
    draws, pace_model = random.Random(7), PaceModel()
    for number in range(40):
        timings = {BASE: math.exp(draws.gauss(0.0, 0.1)), B: math.exp(draws.gauss(0.0, 0.1))}
        _round(pace_model, timings | ({A: 0.8 * timings[BASE]} if number < 3 else {}))
    assert pace_model.uncertainty(A, BASE) > 0.03, f"the variance of all trials has the weight of {NUM_SHARED} rounds"
