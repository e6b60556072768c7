"""What counts as a step with several optimizers."""

from __future__ import annotations

import torch

from slipstream.trial.hooked_step_counter import HookedStepCounter


def test_updates_of_a_learning_rate_finder_are_added_to_those_of_the_training() -> None:
    step_counter, finder, trainer = HookedStepCounter(), torch.nn.Module(), torch.nn.Module()
    for optimizer in [finder] * 3 + [trainer] * 20:
        step_counter._after_update(optimizer, None, None)
    assert step_counter.total_steps == 23


def test_of_two_optimizers_in_use_together_the_one_that_steps_less_often_counts() -> None:
    step_counter, critic, generator = HookedStepCounter(), torch.nn.Module(), torch.nn.Module()
    for optimizer in ([critic] * 5 + [generator]) * 4:
        step_counter._after_update(optimizer, None, None)
    assert step_counter.total_steps == 4
