"""When a slow start ends a candidate."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from slipstream.supervise.slow_start import NUM_TURNS, SlowStart, TooSlow, is_suspect
from slipstream.wire.protocol import Ticked

BASE_S = 0.01


def _judge(steps_s: Sequence[float], beside_s: Sequence[float]) -> tuple[list[TooSlow | None], int]:
    """The decisions after every step, and how often the base ran."""
    slow_start, left = SlowStart(), list(beside_s)

    def time_beside() -> float:
        return left.pop(0)

    ticks = [Ticked(seconds, 0.0, False) for seconds in steps_s]
    verdicts = [slow_start.judge(ticks[: num + 1], BASE_S, time_beside) for num in range(len(ticks))]
    return verdicts, len(beside_s) - len(left)


@pytest.mark.parametrize(
    ("steps", "is_slow"),
    [
        ([(0.5, 0.0)], False),  # the machine may cause one slow step
        ([(0.01, 0.0), (0.5, 0.0)], False),
        ([(0.5, 0.0), (0.4, 0.0)], True),
        ([(0.5, 0.49), (0.5, 0.49)], False),  # waits for workers that start
        ([(0.04, 0.0), (0.04, 0.0)], True),
        ([(0.024, 0.0), (0.024, 0.0)], False),  # short steps vary by this much anyway
    ],
)
def test_two_slow_steps_in_a_row_raise_a_suspicion(steps: list[tuple[float, float]], is_slow: bool) -> None:
    assert is_suspect([Ticked(seconds, input_s, False) for seconds, input_s in steps], BASE_S) == is_slow


def test_a_candidate_that_is_really_slower_is_ended_after_two_turns() -> None:
    verdicts, num_beside = _judge([0.3] * 4, [BASE_S] * 9)
    assert verdicts == [None, None, None, TooSlow(0.3, BASE_S)]
    assert num_beside == 1 + NUM_TURNS


@pytest.mark.parametrize(
    ("steps_s", "beside_s"),
    [
        ([0.3] * 4, [0.3, 0.3, 0.3]),  # a burst that lasts
        ([0.3] * 4, [BASE_S, 0.3, 0.3]),  # a burst that began after the base ran first
        (
            [0.3] * 4,
            [0.3, BASE_S, BASE_S],
        ),  # a burst that ended before the candidate's last step, so that only one turn is slow
        ([0.3, 0.3, BASE_S, 0.3], [BASE_S]),  # one step of the candidate is fast
        ([0.3] * 4, [0.0, 0.0, 0.0]),  # the base could not be timed
        ([0.3] * 4, [BASE_S, 0.0, BASE_S]),
    ],
)
def test_a_burst_of_load_does_not_end_a_candidate(steps_s: list[float], beside_s: list[float]) -> None:
    assert set(_judge(steps_s, beside_s)[0]) == {None}
