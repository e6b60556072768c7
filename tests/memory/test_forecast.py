"""The forecast for other batch sizes: the rule on synthetic footprints, and a comparison with real steps."""

from __future__ import annotations

import pytest

from slipstream.memory.forecast import forecast
from slipstream.records import Footprint
from slipstream.testing.memory_trainings import list_cases, observe

CASES = list_cases()


def make(batch_size: int, forward: int, optimizer: int, capacity: int = 0) -> Footprint:
    phases = {"forward": {"activations": forward}, "optimizer": {"temporary": optimizer}}
    return Footprint(
        device="cpu",
        num_samples=batch_size,
        batch_size=batch_size,
        peak_bytes=max(forward, optimizer),
        peak_ms=0.0,
        peak_phase="forward",
        peak_operator="",
        peak_site=None,
        step_ms=1.0,
        kinds={},
        phases=phases,
        capacity_bytes=capacity,
    )


def test_the_largest_phase_is_the_peak() -> None:
    made = forecast([make(8, 180, 500, 1000), make(4, 140, 500)])
    assert made is not None and made.error is None
    assert made.observed == {8: 500, 4: 500}
    assert made.peak_bytes(8) == 500
    assert made.peak_bytes(100) == 100 + 10 * 100  # forward exceeds the update now
    assert made.largest_batch() == 90
    assert made.largest_batch(499) == 0


def test_a_third_size_gives_the_error() -> None:
    straight = forecast([make(16, 260, 0), make(8, 180, 0), make(4, 140, 0)])
    bent = forecast([make(16, 400, 0), make(8, 180, 0), make(4, 140, 0)])
    assert straight is not None and straight.error == 0
    assert bent is not None and bent.error == pytest.approx(0.35)


def test_one_size_gives_no_forecast() -> None:
    assert forecast([]) is None
    assert forecast([make(8, 1, 1), make(8, 1, 1)]) is None
    assert forecast([make(0, 1, 1), make(4, 1, 1)]) is None


@pytest.mark.parametrize("name", CASES)
def test_twice_and_four_times_the_batch(name: str) -> None:
    case = CASES[name]
    made = forecast([observe(case, 4), observe(case, 2)])
    assert made is not None
    for size in (8, 16):
        assert made.peak_bytes(size) == pytest.approx(observe(case, size).peak_bytes, rel=0.05)
