"""The summary of a step: typical length, phases, ceilings, the limiting resource, and how long the training will take.

The limiting resource is "unknown" only if the step took no time.
"""

from __future__ import annotations

import msgspec

from slipstream.diagnose.ceilings import find_ceilings
from slipstream.diagnose.notes import environment_note, mode_note
from slipstream.diagnose.steps.rollout import acting_note, rollout_note
from slipstream.diagnose.steps.selection import (
    has_trained,
    is_on_cpu,
    num_workers,
    recorded_steps,
    trained_batches,
    usual_batches,
    watched_kinds,
    watched_steps,
)
from slipstream.diagnose.steps.training_time import seconds_of_training
from slipstream.diagnose.steps.typical_step import UNEVEN, TypicalStep, typical_step
from slipstream.diagnose.steps.undisturbed import (
    FEWEST_STEPS,
    counted_steps,
    foreign_cores_during,
    settled_steps,
    undisturbed,
)
from slipstream.diagnose.steps.validation import validation_cost
from slipstream.numbers import in_ms, in_percent, part_of_ms, plural
from slipstream.records import Bound, Ceilings, Session, Summary

COMPUTE_PHASES = ("transfer", "forward", "backward", "optimizer")


def find_bound(
    step_ms: float,
    phases: dict[str, float],
    ceilings: Ceilings,
    num_workers: int,
    device_idle: dict[str, float] | None = None,
) -> Bound:
    if step_ms <= 0:
        return "unknown"
    wait_ms = phases.get("input", 0.0)
    busy_ms = sum(phases.get(phase, 0.0) for phase in COMPUTE_PHASES)
    other_ms = phases.get("other", 0.0)
    # The device may compute in the phase `other`, for example a loss. This time is not idle.
    if device_idle is not None:
        idle_ms = min(other_ms, device_idle.get("other", 0.0))
        other_ms, busy_ms = idle_ms, busy_ms + other_ms - idle_ms
    if other_ms > wait_ms and other_ms > busy_ms:
        return "other"
    if num_workers > 0 and _cores_bind(step_ms, ceilings):
        return "cores"
    if wait_ms > max(busy_ms, other_ms):
        return "input"
    # With workers, input may be the slower side although the wait is shorter than the computation.
    slower = (
        ceilings.input_ms is not None
        and ceilings.compute_ms is not None
        and ceilings.input_ms > 1.05 * ceilings.compute_ms
    )
    if num_workers > 0 and slower and wait_ms > 0.1 * step_ms:
        return "input"
    return "compute"


def _cores_bind(step_ms: float, ceilings: Ceilings) -> bool:
    """Whether the cores limit the step: input and compute together explain its length, and neither alone does."""
    if ceilings.shared_ms is None or ceilings.compute_ms is None or ceilings.input_ms is None:
        return False
    alone_ms = max(ceilings.compute_ms, ceilings.input_ms)
    return ceilings.shared_ms > 1.05 * alone_ms and step_ms > 1.08 * alone_ms and step_ms > 0.75 * ceilings.shared_ms


NOISY = 1.3  # A compute ceiling that is beyond its limit by this factor is reported as noise.


def summarise(session: Session) -> tuple[Summary | None, list[str]]:
    """Return the summary, and sentences about its basis. The summary is None if there are no steps to summarise."""
    settled, steps = settled_steps(session), undisturbed(session)
    counted = {step.index for step in steps}
    disturbed = [step for step in settled if step.index not in counted and not step.is_first_of_epoch]
    typical = typical_step(counted_steps(session), num_workers(session))
    if typical is None:
        seen = "Only the warm-up" if session.steps else "No step"
        return None, [f"{seen} was seen, so the time of a step is unknown."]
    measured = _believable(session, find_ceilings(session), typical)
    ceilings = _at_most(measured, typical.step_ms)
    validation = validation_cost(session, typical.step_ms, typical.phases)
    seconds_left, seconds_best = seconds_of_training(session, typical, ceilings, validation)
    return Summary(
        num_steps=typical.num_steps,
        num_undisturbed=typical.num_steps if steps else 0,
        num_disturbed=len(disturbed),
        foreign_cores=foreign_cores_during(session, disturbed),
        step_ms=typical.step_ms,
        step_low_ms=typical.low_ms,
        step_high_ms=typical.high_ms,
        samples_per_step=typical.samples,
        samples_per_s=typical.samples / typical.step_ms * 1000 if typical.step_ms > 0 else 0.0,
        phases=typical.phases,
        device_phases=typical.device_phases,
        host_phases=typical.host_phases,
        device_idle=typical.device_idle,
        bound=find_bound(typical.step_ms, typical.phases, measured, num_workers(session), typical.device_idle),
        ceilings=ceilings,
        is_inference=not has_trained(session),
        evaluation_share=validation.share(typical.mean_ms) if validation else None,
        evaluation_note=validation.note if validation else "",
        seconds_left=seconds_left,
        seconds_best=seconds_best,
    ), [*_notes(session, typical), *ceilings.notes]


def _believable(session: Session, ceilings: Ceilings, typical: TypicalStep) -> Ceilings:
    """Limits the compute ceiling to what is possible.

    Free data cannot make a step longer. Without workers, free data cannot remove more than the wait for data. With
    workers, free data also frees the cores of the workers. On the CPU, free data removes at least the wait. A device
    may compute during the wait, so free data may remove less. A compute ceiling that is longer than these limits allow,
    or far shorter, is noise. The nearest limit replaces it. The CPU time of the step with free data is scaled by the
    same factor, because the same noise affected this CPU time.
    """
    compute_ms, step_ms = ceilings.compute_ms, typical.step_ms
    rest_ms = step_ms - typical.phases.get("input", 0.0)
    least_ms = 0.0 if num_workers(session) else rest_ms
    most_ms = rest_ms if is_on_cpu(session) else step_ms
    if compute_ms is None:
        return ceilings
    is_too_short = NOISY * compute_ms < least_ms and least_ms - compute_ms > 0.1 * step_ms
    if compute_ms <= most_ms and not is_too_short:
        return ceilings
    notes = list(ceilings.notes)
    believed_ms = max(least_ms, min(compute_ms, most_ms))
    if compute_ms > NOISY * step_ms:
        notes.append(
            f"With free data the step took {compute_ms / step_ms:.1f} times as long as with real data: "
            f"the machine was too noisy, so the compute ceiling is taken as {_taken_as(most_ms, step_ms)}."
        )
    elif is_too_short or compute_ms > NOISY * most_ms:
        notes.append(
            f"With free data the step took {part_of_ms(compute_ms, step_ms)}, which its wait for data does not "
            "explain: the machine was too noisy, so the compute ceiling is taken as the step without that wait."
        )
    cpu_ms, shared_ms = ceilings.compute_cpu_ms, ceilings.shared_ms
    if cpu_ms is not None and compute_ms > 0:
        more_ms = cpu_ms * (believed_ms / compute_ms - 1)
        cpu_ms += more_ms
        cores = max(1.0, session.environment.num_usable)
        shared_ms = shared_ms + more_ms / cores if shared_ms is not None else None
    return msgspec.structs.replace(
        ceilings, compute_ms=believed_ms, shared_ms=shared_ms, compute_cpu_ms=cpu_ms, notes=notes
    )


def _taken_as(most_ms: float, step_ms: float) -> str:
    return "the step without its wait" if most_ms < step_ms else "the step"


def _at_most(ceilings: Ceilings, step_ms: float) -> Ceilings:
    """Limits the input ceiling and the shared ceiling to the measured step."""
    input_ms, shared_ms = (
        min(ms, step_ms) if ms is not None else None for ms in (ceilings.input_ms, ceilings.shared_ms)
    )
    return msgspec.structs.replace(ceilings, input_ms=input_ms, shared_ms=shared_ms)


SELDOM = 0.1  # Share of the steps that may differ: the last step of each epoch may train on fewer batches.


def _growth_note(session: Session) -> str:
    """A sentence if the steps differ in their number of batches."""
    usual = usual_batches(session)
    numbers = [trained_batches(step) for step in recorded_steps(session, watched_kinds(session))]
    if sum(number != usual for number in numbers) <= SELDOM * len(numbers):
        return ""
    return (
        f"The steps train on {min(numbers)} to {max(numbers)} batches each: all times are those of a step with "
        f"{plural(usual, 'batch', 'es')}."
    )


_SHORT = {  # The reason of the session's ending, and the words that explain why only the warm-up was seen
    "stopped": "The check was short",
    "finished": "The script was short",
    "raised": "The script ended early",
    "interrupted": "The check was interrupted",
    "killed": "The script was killed",
}


def _notes(session: Session, typical: TypicalStep) -> list[str]:
    notes: list[str] = []
    if rollout := rollout_note(session) or acting_note(session):
        notes.append(rollout)
    if environment := environment_note(session, typical.step_ms, typical.phases):
        notes.append(environment)
    if mode := mode_note(session):
        notes.append(mode)
    if growth := _growth_note(session):
        notes.append(growth)
    is_uneven = typical.mean_ms > UNEVEN * typical.step_ms and typical.num_steps >= FEWEST_STEPS
    if is_uneven and undisturbed(session):  # Disturbed steps are uneven because of other programs.
        notes.append(
            f"Most steps take {in_ms(typical.step_ms)}, but on average one takes {in_ms(typical.mean_ms)}: "
            f"{in_percent(1 - typical.step_ms / typical.mean_ms)} of the time is spent in a few long steps. "
            "Phases and gains describe the usual step."
        )
    if watched_steps(session) and watched_kinds(session) == ("warmup",):
        cause = _SHORT[session.ending.reason]
        notes.append(f"{cause}: the numbers rest on {typical.num_steps} of its first steps, warm-up included.")
    elif typical.num_steps < FEWEST_STEPS:
        steps = plural(typical.num_steps, "undisturbed step" if session.foreign_load else "step")
        notes.append(f"Only {steps} could be observed: the numbers are a first impression.")
    return notes
