from __future__ import annotations

import math
import random
import statistics

import pytest

from slipstream.records import BlockTiming
from slipstream.tuning.pace_model import NUM_SHARED, PaceModel, middle

BASE, A, B = 1, 2, 3


def _timing(trial: int, seconds: float, **how: bool) -> BlockTiming:
    return BlockTiming(trial, 0, 0, 1, seconds, 0, **how)  # type: ignore[arg-type]


def _round(pace_model: PaceModel, paces: dict[int, float]) -> None:
    pace_model.add({who: _timing(who, seconds) for who, seconds in paces.items()})


def test_a_rounds_pace_is_nobodys_gain() -> None:
    pace_model = PaceModel()
    for pace in (1.0, 3.0, 0.5, 2.0):
        _round(pace_model, {BASE: pace, A: pace * 0.8, B: pace * 1.25})
    assert pace_model.gain(A, BASE) == pytest.approx(math.log(1.25))
    assert pace_model.gain(B, BASE) == pytest.approx(-math.log(1.25))


def test_trials_that_never_met_compare_through_those_they_met() -> None:
    pace_model = PaceModel()
    for _ in range(6):
        _round(pace_model, {BASE: 1.0, A: 0.8})
    for _ in range(6):
        _round(pace_model, {BASE: 4.0, B: 3.2})
    assert pace_model.gain(B, A) == pytest.approx(0.0, abs=1e-6)
    assert pace_model.num_rounds(BASE) == 12 and pace_model.num_rounds(A) == 6


def test_what_does_not_count_is_left_out() -> None:
    pace_model = PaceModel()
    _round(pace_model, {BASE: 1.0, A: 0.5})
    pace_model.add({BASE: _timing(BASE, 1.0), A: _timing(A, 9.0, is_disturbed=True)})
    pace_model.add({BASE: _timing(BASE, 1.0), A: BlockTiming(A, 0, 0, 0, 0.0, 0, failure="out")})
    assert pace_model.num_rounds(A) == 1 and pace_model.num_rounds(BASE) == 1, "who rode alone says nothing"
    assert pace_model.gain(A, BASE) == pytest.approx(math.log(2))


def test_one_extreme_round_moves_little() -> None:
    pace_model = PaceModel()
    for seconds in [0.8] * 11 + [8.0]:
        _round(pace_model, {BASE: 1.0, A: seconds})
    assert pace_model.gain(A, BASE) == pytest.approx(math.log(1.25), abs=0.02)


def test_a_few_rounds_are_sharper_against_all_that_rode_than_against_one() -> None:
    draws, by_pace_model, by_pairs = random.Random(3), list[float](), list[float]()
    for _ in range(80):
        pace_model, pairs = PaceModel(), []
        for number in range(60):
            logs = {who: draws.gauss(0.0, 0.1) for who in (BASE, *((A,) if number < 12 else ()), 4, 5, 6, 7)}
            if A in logs:
                pairs.append(logs[BASE] - logs[A])
            _round(pace_model, {who: math.exp(log) for who, log in logs.items()})
        by_pace_model.append(pace_model.gain(A, BASE))
        by_pairs.append(middle(pairs))
    assert statistics.pstdev(by_pace_model) < 0.85 * statistics.pstdev(by_pairs)


def test_its_uncertainty_is_that_of_its_errors() -> None:
    draws, errors, said = random.Random(5), list[float](), list[float]()
    for _ in range(60):
        pace_model = PaceModel()
        for _ in range(30):
            _round(pace_model, {who: math.exp(draws.gauss(0.0, 0.1)) for who in range(4)})
        errors.append(pace_model.gain(1, 0))
        said.append(pace_model.uncertainty(1, 0))
    assert statistics.fmean(said) == pytest.approx(statistics.pstdev(errors), rel=0.35)


def test_few_rounds_that_happen_to_agree_are_not_taken_for_certainty() -> None:
    draws, pace_model = random.Random(7), PaceModel()
    for number in range(40):
        timings = {BASE: math.exp(draws.gauss(0.0, 0.1)), B: math.exp(draws.gauss(0.0, 0.1))}
        _round(pace_model, timings | ({A: 0.8 * timings[BASE]} if number < 3 else {}))
    assert pace_model.uncertainty(A, BASE) > 0.03, f"everybody's restlessness counts for {NUM_SHARED} rounds of its own"
