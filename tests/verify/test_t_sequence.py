from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

import pytest

from slipstream.verify.t_sequence import PRIOR, TSequence

ALPHA = 0.05
PAIRS = [0.31, 0.18, 0.27, 0.12, 0.33, 0.24, 0.2, 0.29]


def _sequence(log_ratios: Sequence[float], alpha: float = ALPHA) -> TSequence:
    sequence = TSequence(alpha)
    for log_ratio in log_ratios:
        sequence.add(log_ratio)
    return sequence


def _evidence(log_ratios: Sequence[float], theta: float) -> float:
    """The left side of the condition in the module's docstring."""
    count, squares = len(log_ratios), sum((one - theta) ** 2 for one in log_ratios)
    distance = fmean(log_ratios) - theta
    ratio = squares / (squares - (count * distance) ** 2 / (count + PRIOR))
    return math.sqrt(PRIOR / (count + PRIOR)) * ratio ** (count / 2)


def _numeric_bound(log_ratios: Sequence[float], side: int) -> float:
    """The bound by bisection: the evidence grows with the distance from the mean."""
    middle, near, far = fmean(log_ratios), 0.0, 50.0
    if _evidence(log_ratios, middle + side * far) <= 1 / ALPHA:
        return side * math.inf
    for _ in range(80):
        between = (near + far) / 2
        is_beyond = _evidence(log_ratios, middle + side * between) > 1 / ALPHA
        near, far = (near, between) if is_beyond else (between, far)
    return middle + side * far


@pytest.mark.parametrize("num_pairs", range(2, len(PAIRS) + 1))
def test_the_bounds_solve_the_condition(num_pairs: int) -> None:
    seen = PAIRS[:num_pairs]
    bounds = [[_numeric_bound(PAIRS[:number], side) for number in range(2, num_pairs + 1)] for side in (-1, 1)]
    low, high = max(bounds[0]), min(bounds[1])  # an excluded value stays excluded
    speed = _sequence(seen).speed()
    if math.isinf(low):
        assert not speed.is_bounded and math.isinf(_sequence(seen).width())
        return
    assert math.log(speed.low) == pytest.approx(low, abs=1e-6)
    assert math.log(speed.high) == pytest.approx(high, abs=1e-6)
    assert _sequence(seen).width() == pytest.approx(high - low, abs=1e-6)


def test_the_interval_only_becomes_shorter() -> None:
    rng, sequence = random.Random(1), TSequence(ALPHA)
    lows, highs = [], []
    for _ in range(40):
        sequence.add(rng.gauss(0.2, 0.1))
        lows.append(sequence.speed().low)
        highs.append(sequence.speed().high)
    assert all(late >= early for early, late in pairwise(lows))
    assert all(late <= early for early, late in pairwise(highs))
    assert lows[-1] <= math.exp(0.2) <= highs[-1]


def test_too_few_pairs_show_nothing_however_alike_they_are() -> None:
    for number in range(3):
        sequence = _sequence([0.5] * number)
        assert not sequence.is_above(0.0) and not sequence.is_below(10.0)
        assert not sequence.speed().is_bounded and math.isinf(sequence.width())
    assert TSequence(ALPHA).speed().ratio == 1.0
    assert _sequence([0.5] * 4).is_above(0.4), "equal pairs have the least spread, and not none"


def test_a_smaller_alpha_gives_a_longer_interval() -> None:
    widths = [_sequence(PAIRS, alpha).width() for alpha in (0.1, 0.05, 0.025, 0.0125)]
    assert widths == sorted(widths) and widths[0] < widths[-1]


def test_a_recipe_is_proved_or_refuted_by_the_bounds() -> None:
    fast, slow = _sequence(PAIRS), _sequence([-one for one in PAIRS])
    assert fast.is_above(0.01) and not fast.is_below(0.01)
    assert slow.is_below(0.01) and not slow.is_above(0.01)
    assert fast.speed().ratio == pytest.approx(math.exp(fmean(PAIRS))) and fast.speed().num_rounds == len(PAIRS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_log_ratio_must_be_finite(value: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        TSequence(ALPHA).add(value)


def _normal(rng: random.Random) -> float:
    return rng.gauss(0.0, 1.0)


def _heavy(rng: random.Random) -> float:
    """t with three degrees of freedom, of variance 1."""
    return rng.gauss(0.0, 1.0) / math.sqrt(sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3)))


@pytest.mark.parametrize("noise", [_normal, _heavy])
@pytest.mark.parametrize("spread", [0.01, 0.14])
@pytest.mark.parametrize("truth", [0.0, math.log(1.2)])
def test_the_truth_is_covered_at_all_times_at_once(
    noise: Callable[[random.Random], float], spread: float, truth: float
) -> None:
    """Whatever the spread is, because nothing is known about it before. Seeded, so that it cannot fail by chance."""
    rng, num_missed, num_kept = random.Random(7), 0, 0
    for _ in range(400):
        sequence = TSequence(ALPHA)
        for _ in range(16):
            sequence.add(truth + spread * noise(rng))
        speed = sequence.speed()
        num_missed += not math.log(speed.low) <= truth <= math.log(speed.high)
        num_kept += sequence.is_above(0.01)
    assert num_missed <= 0.05 * 400
    assert num_kept <= 0.03 * 400 if truth == 0.0 else num_kept >= 0.85 * 400
