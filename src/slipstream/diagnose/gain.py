"""The largest gain that a fix can give, by Amdahl's law, and what the rehearsals at the end of a check measured."""

from __future__ import annotations

import math
from typing import Final

from slipstream.records import Rehearsal, Session, Summary

LEAST_GAIN = 1.03  # Smaller gains are below the noise of the machine.


def gain_of(step_ms: float, then_ms: float) -> float:
    """The step time now divided by the step time after the change; never below 1."""
    if step_ms <= 0 or then_ms >= step_ms:
        return 1.0
    return step_ms / max(then_ms, step_ms * 1e-3)


def gain_without(step_ms: float, removable_ms: float, share: float = 1.0) -> float:
    """The gain if `share` of the removable time went away and nothing else changed."""
    return gain_of(step_ms, step_ms - min(max(removable_ms, 0.0), step_ms) * share)


# Causes whose fixes make input cheaper or let it overlap. The step does not become shorter than with free data.
OF_INPUT: Final = (
    *("no_workers", "worker_count", "heavy_handover"),
    *("slow_read", "slow_decode", "slow_transform", "slow_collate"),
)
# Causes whose gains concern the average step or an epoch. The ratio of the usual step to a ceiling does not bound these
# gains. Causes that concern the average step limit their gains themselves.
OF_MORE_THAN_THE_STEP: Final = (
    *("shallow_prefetch", "frequent_logging"),
    *("worker_restart", "frequent_validation", "grad_in_evaluation", "frequent_saving"),
)


def largest_gain(cause: str, summary: Summary) -> float:
    """The largest gain of a fix for this cause that the ceilings allow.

    For a cause of the input, the limit is the step with free data. For any other cause it is the step with free
    compute, because the loader delivers no faster than that.
    """
    ceilings = summary.ceilings
    least_ms = ceilings.compute_ms if cause in OF_INPUT else ceilings.input_ms
    return gain_of(summary.step_ms, least_ms) if least_ms and cause not in OF_MORE_THAN_THE_STEP else math.inf


# Ratio of the copy's time to the time in the script. A copy that was slower than this was disturbed by other programs.
FAR_OFF = 3.0
CLEARLY = 1.02  # A remedy counts as faster if its whole interval lies above this gain.


def rehearsal_of(session: Session, remedy: str) -> Rehearsal | None:
    return next((rehearsal for rehearsal in session.rehearsals if rehearsal.remedy == remedy), None)


def rehearsed_gain(summary: Summary, rehearsal: Rehearsal, touched_ms: float, times: int = 1) -> float:
    """The gain of the step if the affected part of it became faster by the same factor as the rehearsal's copy.

    `times` is the number of times that a step does the work of the copy. A rehearsal of the model takes one batch, and
    a step may take several. Returns 1.0 if the copy did not become clearly faster, or if its time before the change is
    far longer than the affected part of the step.
    """
    if rehearsal.low < CLEARLY or rehearsal.now_ms > FAR_OFF * touched_ms / times:
        return 1.0
    return gain_without(summary.step_ms, touched_ms, 1 - 1 / rehearsal.ratio)


def rehearsed_words(rehearsal: Rehearsal) -> str:
    return (
        f"on a copy {rehearsal.now_ms:.3g} ms became {rehearsal.then_ms:.3g} ms "
        f"({rehearsal.ratio:.2f}x, {rehearsal.low:.2f} to {rehearsal.high:.2f} in {rehearsal.num_pairs} pairs)"
    )
