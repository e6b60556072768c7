"""What counts as a step with several optimizers."""

from __future__ import annotations

from slipstream.trial.step_count import StepCount


def counting() -> StepCount:
    step_count = StepCount()
    step_count._early = None
    return step_count


def test_updates_of_a_learning_rate_finder_are_added_to_those_of_the_training() -> None:
    step_count, finder, trainer = counting(), object(), object()
    for optimizer in [finder] * 3 + [trainer] * 20:
        step_count._after_update(optimizer, None, None)
    assert step_count.num_steps == 23


def test_of_two_optimizers_in_use_together_the_one_that_steps_less_often_counts() -> None:
    step_count, critic, generator = counting(), object(), object()
    for optimizer in ([critic] * 5 + [generator]) * 4:
        step_count._after_update(optimizer, None, None)
    assert step_count.num_steps == 4
