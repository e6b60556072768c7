from __future__ import annotations

import math

import pytest

from slipstream.records import BlockTiming
from slipstream.tuning.step_drift import change, change_of_all, is_ageing, trend


def _timings(*steps_ms: float) -> list[BlockTiming]:
    return [BlockTiming(0, at, 10 * at, 10, ms / 100, 0) for at, ms in enumerate(steps_ms)]


def test_the_end_of_a_ride_is_held_against_its_beginning() -> None:
    assert change(_timings(9, 1, 1.1, 1.3, 1.5, 1.8, 2)) == pytest.approx(math.sqrt(1.8 * 2 / 1.1)), (
        "the first was cold"
    )
    assert change(_timings(2, 2, 2, 1, 1, 1, 1)) == pytest.approx(0.5)
    assert change(_timings(1, 2, 3, 4)) is None


def test_what_may_be_chance_is_no_change() -> None:
    assert change(_timings(1, 1, 2, 1, 2, 2, 1.2)) == 1.0, "blocks that jump to and fro say little"
    assert change(_timings(5, 5, 5, 5, 5, 5, 50)) == 1.0, "nor does one alone"
    assert change(_timings(*[1 + 0.02 * (at % 2) for at in range(9)])) == 1.0


def test_the_middle_trial_says_whether_steps_change() -> None:
    same, slower = _timings(1, 1, 1, 1, 1), _timings(2, 2, 2, 2, 4, 4, 4)
    assert change_of_all([same, slower, slower]) == 2.0 and change_of_all([same, same, slower]) == 1.0
    assert change_of_all([[], _timings(1, 9)]) == 1.0, "none of them can tell"


def test_a_little_is_a_machine_s_mood_but_not_where_the_promise_is_at_stake() -> None:
    assert is_ageing(1.4) and is_ageing(0.7) and not is_ageing(1.2) and not is_ageing(0.8)
    assert is_ageing(1.2, is_final=True) and is_ageing(0.8, is_final=True)
    assert not is_ageing(1.05, is_final=True) and not is_ageing(0.95, is_final=True)


def test_a_gain_that_changes_within_each_ride_has_a_trend() -> None:
    ride = [math.log(4.0)] * 4 + [math.log(3.0)] * 4 + [math.log(2.0)] * 4
    assert trend([ride, ride]) == pytest.approx((4.0, 2.0))
    assert trend([ride]) == pytest.approx((4.0, 2.0))
    assert trend([[math.log(2.0), math.log(2.1)] * 6]) is None
    assert trend([ride[:9], []]) is None, "three blocks say nothing"
    loud = [0.0, 1.0, 0.0, 1.0, 0.5, 0.2, 1.0, 0.3, 1.2, 0.1]
    assert trend([loud]) is None, "noise is no trend"
