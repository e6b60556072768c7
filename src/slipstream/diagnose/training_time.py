"""How long the training takes at this rate, and how long if input were free. Silent where its length is unknown."""

from __future__ import annotations

import msgspec

from slipstream.diagnose.selection import epoch_steps, num_workers
from slipstream.diagnose.statistics import median
from slipstream.diagnose.typical_step import TypicalStep
from slipstream.diagnose.validation import ValidationCost
from slipstream.records import Ceilings, Session, Step


def epoch_start_ms(session: Session, step_ms: float) -> float:
    """What opening an epoch costs beyond an ordinary step."""
    return median([max(0.0, step.step_ms - step_ms) for step in _openers(session)] or [0.0])


def epoch_wait_ms(session: Session, input_ms: float) -> float:
    """What of that is waiting for data: workers that start, or that have no batch ready yet."""
    return median([max(0.0, step.phases.get("input", 0.0) - input_ms) for step in _openers(session)] or [0.0])


def _openers(session: Session) -> list[Step]:
    """Steps that open an epoch. The very first also pays for imports and warm-up."""
    firsts = [step for step in session.steps if step.is_first_of_epoch]
    return firsts[1:] or [step for step in firsts if step.index > 0]


def seconds_of_training(
    session: Session, typical: TypicalStep, ceilings: Ceilings, validation: ValidationCost | None
) -> tuple[float | None, float | None]:
    """(at this rate, if input were free). Without workers free data save the wait and nothing else: a ceiling below
    that was a quieter stretch of time."""
    step_ms = typical.mean_ms
    num_steps, num_epochs = training_length(session)
    if num_steps is None:
        return None, None
    step_ms = typical.mean_ms
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
    # The ceiling is that of the typical step; what makes the average longer stays.
    share = min(1.0, free_ms / typical.step_ms) if typical.step_ms > 0 else 1.0
    rest_ms = max(0.0, start_ms - epoch_wait_ms(session, wait_ms))
    return now, (num_steps * step_ms * share + num_epochs * rest_ms + validation_ms) / 1000


def training_length(session: Session) -> tuple[float | None, float]:
    """Steps and epochs of the whole training, as far as the script says. A number that the ride went past meant
    something else: the steps of a rollout, of one epoch."""
    length, epoch = session.length, epoch_steps(session)
    if length is None:
        return None, 0.0
    if length.num_steps is not None and length.num_steps < max((step.index for step in session.steps), default=-1) + 1:
        length = msgspec.structs.replace(length, num_steps=None)
    if length.num_steps is not None:
        return float(length.num_steps), length.num_steps / epoch if epoch else 0.0
    if length.num_epochs is not None and epoch is not None:
        return length.num_epochs * epoch, float(length.num_epochs)
    return None, 0.0
