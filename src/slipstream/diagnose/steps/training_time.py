"""Computes how long the training takes at the measured rate and with free input, if the training's length is known."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.statistics import median
from slipstream.diagnose.steps.selection import epoch_steps, num_workers
from slipstream.diagnose.steps.typical_step import TypicalStep
from slipstream.diagnose.steps.validation import ValidationCost
from slipstream.records import Ceilings, Length, Session, Step


def epoch_start_ms(session: Session, step_ms: float) -> float:
    """The time that the first step of an epoch takes beyond an ordinary step."""
    return median([max(0.0, step.step_ms - step_ms) for step in _openers(session)] or [0.0])


def epoch_wait_ms(session: Session, input_ms: float) -> float:
    """The time by which the first step of an epoch waits longer for data than an ordinary step.

    During that time workers start, or have no batch ready yet.
    """
    return median([max(0.0, step.phases.get("input", 0.0) - input_ms) for step in _openers(session)] or [0.0])


def _openers(session: Session) -> list[Step]:
    """The first steps of all epochs but the first epoch, whose first step also contains imports and warm-up."""
    firsts = [step for step in session.steps if step.is_first_of_epoch]
    return firsts[1:] or [step for step in firsts if step.index > 0]


def seconds_of_training(
    session: Session, typical: TypicalStep, ceilings: Ceilings, validation: ValidationCost | None
) -> tuple[float | None, float | None]:
    """Return the seconds of the training at this rate, and with free input; None for what is unknown.

    Without workers, free input removes only the wait for data. A compute ceiling that is shorter than the step without
    this wait was measured while the machine was quieter. The step without the wait is used in its place.
    """
    num_steps, num_epochs = training_length(session)
    if num_steps is None:
        return None, None
    # Rare long steps make the average step longer than the usual one. If the average is shorter, the machine became
    # slower during the check. The shorter average is not used, because it would contradict the report's step and rate.
    step_ms = max(typical.mean_ms, typical.step_ms)
    start_ms = epoch_start_ms(session, step_ms)
    validation_ms = 0.0
    if validation is not None and validation.every_steps > 0:
        validation_ms = num_steps / validation.every_steps * validation.ms
    now = (num_steps * step_ms + num_epochs * start_ms + validation_ms) / 1000
    if ceilings.compute_ms is None:
        return now, None
    free_ms, wait_ms = ceilings.compute_ms, typical.phases.get("input", 0.0)
    if num_workers(session) == 0:
        free_ms = max(free_ms, typical.step_ms - wait_ms)
    # The ceiling describes the typical step. The average step is shortened by the same ratio.
    share = min(1.0, free_ms / typical.step_ms) if typical.step_ms > 0 else 1.0
    rest_ms = max(0.0, start_ms - epoch_wait_ms(session, wait_ms))
    return now, (num_steps * step_ms * share + num_epochs * rest_ms + validation_ms) / 1000


def training_length(session: Session) -> tuple[float | None, float]:
    """The numbers of steps and epochs of the whole training, as far as the script announces them."""
    length, epoch = binding_length(session), epoch_steps(session)
    if length is None:
        return None, 0.0
    if length.num_steps is not None:
        return float(length.num_steps), length.num_steps / epoch if epoch else 0.0
    if length.num_epochs is not None and epoch is not None:
        return length.num_epochs * epoch, float(length.num_epochs)
    return None, 0.0


def binding_length(session: Session) -> Length | None:
    """The length that ends the training: the number of epochs or the number of steps, whichever is reached first.

    A number of steps that the trial exceeded is ignored. It has another meaning, such as the steps of a rollout or of
    one epoch.
    """
    length, epoch = session.length, epoch_steps(session)
    if length is None or length.num_steps is None:
        return length
    is_exceeded = length.num_steps < max((step.index for step in session.steps), default=-1) + 1
    is_later = length.num_epochs is not None and epoch is not None and length.num_epochs * epoch <= length.num_steps
    dropped = "num_steps" if is_exceeded or is_later else "num_epochs"
    return msgspec.structs.replace(length, **{dropped: None})
