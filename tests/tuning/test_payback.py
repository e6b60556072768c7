from __future__ import annotations

from slipstream.tuning.payback import one_off_s, payback_steps, pays_within


def test_starts_that_differ_by_chance_cost_nothing() -> None:
    assert one_off_s(5.3, 5.0) == 0.0
    assert one_off_s(4.0, 5.0) == 0.0
    assert one_off_s(65.0, 5.0) == 60.0


def test_the_number_of_steps_that_recover_a_cost() -> None:
    assert payback_steps(60.0, 0.100, 0.070) == 2000
    assert payback_steps(0.0, 0.100, 0.070) is None
    assert payback_steps(60.0, 0.100, 0.110) is None


def test_a_cost_must_be_recovered_within_the_training() -> None:
    assert not pays_within(2000, 1500) and pays_within(1000, 1500)
    assert pays_within(None, 1500), "it costs nothing"
    assert pays_within(2000, None), "a training of unknown length is taken to be long enough"
