from __future__ import annotations

from slipstream.trial.step_count import StepCount


def counting() -> StepCount:
    tally = StepCount()
    tally._early = None
    return tally


def test_a_search_for_the_learning_rate_comes_before_the_training() -> None:
    tally, finder, trainer = counting(), object(), object()
    for optimizer in [finder] * 3 + [trainer] * 20:
        tally._after_update(optimizer, None, None)
    assert tally.num_steps == 23


def test_the_rarer_of_two_optimizers_at_a_time_counts() -> None:
    tally, critic, generator = counting(), object(), object()
    for optimizer in ([critic] * 5 + [generator]) * 4:
        tally._after_update(optimizer, None, None)
    assert tally.num_steps == 4
