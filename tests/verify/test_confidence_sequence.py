from __future__ import annotations

import math
import random

import pytest

from slipstream.records import BlockTiming
from slipstream.verify.confidence_sequence import FARTHEST, ConfidenceSequence


def _compared(ratios: list[float]) -> ConfidenceSequence:
    comparison = ConfidenceSequence()
    for ratio in ratios:
        comparison.add(ratio)
    return comparison


def _timing(seconds: float, trial: int = 0, round: int = 1, **facts: bool) -> BlockTiming:
    return BlockTiming(trial=trial, round=round, first_step=0, num_steps=4, seconds=seconds, time_ns=0, **facts)


def _heavy(rng: random.Random) -> float:
    """Symmetric noise with such long tails that it has no variance."""
    return 0.02 * math.tan(math.pi * (rng.random() - 0.5))


def test_nothing_is_known_before_the_first_round() -> None:
    speed = ConfidenceSequence().speed()
    assert (speed.ratio, speed.low, speed.high, speed.num_rounds) == pytest.approx((1.0, 1 / FARTHEST, FARTHEST, 0))
    assert not ConfidenceSequence().is_faster(0.0, 0.05)


def test_even_a_certain_gain_needs_enough_rounds() -> None:
    """Each round could have come out the other way by the toss of a coin; eight equal tosses have a chance of one in
    256.
    """
    ratios = [math.log(2.0)] * 8
    assert not _compared(ratios).is_faster(0.01, 0.05 / 12)
    assert _compared([*ratios, math.log(2.0)]).is_faster(0.01, 0.05 / 12)


def test_the_interval_closes_on_a_steady_gain() -> None:
    rng = random.Random(1)
    speed = _compared([math.log(1.10) + rng.gauss(0.0, 0.01) for _ in range(60)]).speed()
    assert speed.low < 1.10 < speed.high
    assert 1.09 < speed.ratio < 1.11
    assert speed.high - speed.low < 0.02


def test_faster_and_not_faster_are_mirror_images() -> None:
    rng = random.Random(2)
    ratios = [0.04 + rng.gauss(0.0, 0.03) for _ in range(40)]
    up, down = _compared(ratios), _compared([-ratio for ratio in ratios])
    for margin in (0.0, 0.01, 0.03, 0.08):
        mirrored = 1.0 / (1.0 + margin) - 1.0
        assert up.is_faster(margin, 0.01) == down.is_not_faster(mirrored, 0.01)
    assert up.is_faster(0.0, 0.01)
    assert up.is_not_faster(0.15, 0.01)


def test_bounds_and_decisions_agree() -> None:
    rng = random.Random(3)
    comparison = _compared([0.05 + rng.gauss(0.0, 0.03) for _ in range(40)])
    speed = comparison.speed(alpha=0.05)
    assert comparison.is_faster(speed.low - 1.0 - 1e-3, 0.025)
    assert not comparison.is_faster(speed.low - 1.0 + 1e-3, 0.025)
    assert comparison.is_not_faster(speed.high - 1.0 + 1e-3, 0.025)
    assert not comparison.is_not_faster(speed.high - 1.0 - 1e-3, 0.025)


def test_one_outlier_does_not_undo_a_gain() -> None:
    rng = random.Random(4)
    ratios = [0.08 + rng.gauss(0.0, 0.01) for _ in range(30)]
    ratios[10] = ratios[20] = -0.7
    comparison = _compared(ratios)
    assert comparison.is_faster(0.01, 0.05 / 12)
    assert comparison.speed().ratio == pytest.approx(math.exp(0.08), rel=0.01)


@pytest.mark.parametrize("noise", ["heavy", "drifting", "bursts"])
def test_false_positives_over_all_times_stay_below_alpha(noise: str) -> None:
    """The sequence is evaluated after every round, and the worst evaluation counts."""
    num_fooled, num_races = 0, 300
    for seed in range(num_races):
        rng = random.Random(f"{noise} {seed}")
        comparison, size = ConfidenceSequence(), 0.01
        for round in range(60):
            if noise == "drifting":
                size *= math.exp(rng.gauss(0.0, 0.3))  # the scale varies, as on a machine with other users
            elif noise == "bursts":
                size = 0.2 if round % 13 == 0 else 0.01
            comparison.add(_heavy(rng) if noise == "heavy" else rng.choice((-1, 1)) * size * (0.5 + rng.random()))
            if comparison.is_faster(0.0, 0.05):
                num_fooled += 1
                break
    # At most 15 are expected. 24 would have a chance of one in a hundred. The seeds are fixed.
    assert num_fooled <= 23


def test_the_interval_covers_the_truth_at_all_times() -> None:
    num_missed, num_races = 0, 80
    for seed in range(num_races):
        rng = random.Random(seed)
        comparison = ConfidenceSequence()
        for round in range(1, 41):
            comparison.add(0.05 + _heavy(rng))
            if round % 5 == 0:
                speed = comparison.speed()
                if not speed.low <= math.exp(0.05) <= speed.high:
                    num_missed += 1
                    break
    assert num_missed <= 0.05 * num_races


def test_a_gain_as_large_as_the_noise_is_found_in_some_thirty_rounds() -> None:
    num_found = 0
    for seed in range(100):
        rng = random.Random(seed)
        comparison = _compared([0.04 + rng.gauss(0.0, 0.04) for _ in range(32)])
        num_found += comparison.is_faster(0.0, 0.05 / 12)
    assert num_found >= 85


def test_disturbed_timings_and_empty_ones_are_left_out() -> None:
    comparison = ConfidenceSequence()
    assert not comparison.add_timings(_timing(1.0, is_disturbed=True), _timing(0.5, 1))
    assert not comparison.add_timings(_timing(1.0), _timing(0.5, 1, is_disturbed=True))
    assert not comparison.add_timings(_timing(1.0), _timing(0.0, 1))
    assert comparison.num_rounds == 0
    assert comparison.add_timings(_timing(1.0), _timing(0.5, 1))
    assert comparison.speed().ratio == pytest.approx(2.0)


def test_only_numbers_are_added() -> None:
    with pytest.raises(ValueError, match="finite"):
        ConfidenceSequence().add(math.nan)


def test_thousands_of_rounds_do_not_overflow() -> None:
    rng = random.Random(5)
    comparison = _compared([0.05 + rng.gauss(0.0, 0.01) for _ in range(1500)])
    assert comparison.is_faster(0.01, 1e-6)
    assert not comparison.is_not_faster(0.01, 0.05)
    assert 1.04 < comparison.speed().low < math.exp(0.05) < comparison.speed().high < 1.06
