from __future__ import annotations

import math

import pytest

from slipstream.records import BlockTiming
from slipstream.tuning.step_drift import change, change_of_all, is_drifting, trend


def _timings(*steps_ms: float) -> list[BlockTiming]:
    return [BlockTiming(0, at, 10 * at, 10, ms / 100, 0) for at, ms in enumerate(steps_ms)]


def test_the_end_of_a_run_is_compared_with_its_beginning() -> None:
    assert change(_timings(9, 1, 1.1, 1.3, 1.5, 1.8, 2)) == pytest.approx(math.sqrt(1.8 * 2 / 1.1)), (
        "the first block is ignored"
    )
    assert change(_timings(2, 2, 2, 1, 1, 1, 1)) == pytest.approx(0.5)
    assert change(_timings(1, 2, 3, 4)) is None


def test_a_change_within_the_noise_is_no_change() -> None:
    assert change(_timings(1, 1, 2, 1, 2, 2, 1.2)) == 1.0, "blocks that vary much show little"
    assert change(_timings(5, 5, 5, 5, 5, 5, 50)) == 1.0, "one block alone shows nothing"
    assert change(_timings(*[1 + 0.02 * (at % 2) for at in range(9)])) == 1.0


def test_the_median_trial_decides_whether_steps_change() -> None:
    same, slower = _timings(1, 1, 1, 1, 1), _timings(2, 2, 2, 2, 4, 4, 4)
    assert change_of_all([same, slower, slower]) == 2.0 and change_of_all([same, same, slower]) == 1.0
    assert change_of_all([[], _timings(1, 9)]) == 1.0, "none has enough blocks"


def test_a_small_drift_counts_only_in_the_final_race() -> None:
    assert is_drifting(1.4) and is_drifting(0.7) and not is_drifting(1.2) and not is_drifting(0.8)
    assert is_drifting(1.2, is_final=True) and is_drifting(0.8, is_final=True)
    assert not is_drifting(1.05, is_final=True) and not is_drifting(0.95, is_final=True)


def test_a_gain_that_changes_within_each_run_has_a_trend() -> None:
    ratios = [math.log(4.0)] * 4 + [math.log(3.0)] * 4 + [math.log(2.0)] * 4
    assert trend([ratios, ratios]) == pytest.approx((4.0, 2.0))
    assert trend([ratios]) == pytest.approx((4.0, 2.0))
    assert trend([[math.log(2.0), math.log(2.1)] * 6]) is None
    assert trend([ratios[:9], []]) is None, "three blocks are too few"
    loud = [0.0, 1.0, 0.0, 1.0, 0.5, 0.2, 1.0, 0.3, 1.2, 0.1]
    assert trend([loud]) is None, "noise is no trend"
