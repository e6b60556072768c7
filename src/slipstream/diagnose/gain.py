"""The largest gain that a fix can give, by Amdahl's law, and what the rehearsals at the end of a check measured."""

from __future__ import annotations

import math
from typing import Final

from slipstream.records import Rehearsal, Session, Summary

LEAST_GAIN = 1.03  # smaller gains are below the noise of the machine


def gain_of(step_ms: float, then_ms: float) -> float:
    """The step time now divided by the step time after the change; never below 1."""
    if step_ms <= 0 or then_ms >= step_ms:
        return 1.0
    return step_ms / max(then_ms, step_ms * 1e-3)


def gain_without(step_ms: float, removable_ms: float, share: float = 1.0) -> float:
    """The gain if `share` of the removable time went away and nothing else changed."""
    return gain_of(step_ms, step_ms - min(max(removable_ms, 0.0), step_ms) * share)


# Their fixes make input cheaper or let it overlap, so the step does not become shorter than with free data.
OF_INPUT: Final = (
    *("no_workers", "worker_count", "heavy_handover"),
    *("slow_read", "slow_decode", "slow_transform", "slow_collate"),
)
# Their gains are those of the average step, which they bound themselves, or of an epoch. The ratio of the usual step to
# a ceiling does not bound them.
OF_MORE_THAN_THE_STEP: Final = (
    *("shallow_prefetch", "frequent_logging"),
    *("worker_restart", "frequent_validation", "grad_in_evaluation", "frequent_saving"),
)


def largest_gain(cause: str, summary: Summary) -> float:
    """The gain that the ceilings allow a fix for this cause: to the step with free data if it fixes the input, else to
    the step with free compute, because the loader delivers no faster."""
    ceilings = summary.ceilings
    least_ms = ceilings.compute_ms if cause in OF_INPUT else ceilings.input_ms
    return gain_of(summary.step_ms, least_ms) if least_ms and cause not in OF_MORE_THAN_THE_STEP else math.inf


FAR_OFF = 3.0  # ratio to the time in the script; if the copy was this much slower, other programs ran at the same time
CLEARLY = 1.02  # the interval must lie above this gain before a remedy counts as faster


def rehearsal_of(session: Session, remedy: str) -> Rehearsal | None:
    return next((rehearsal for rehearsal in session.rehearsals if rehearsal.remedy == remedy), None)


def rehearsed_gain(summary: Summary, rehearsal: Rehearsal, touched_ms: float, times: int = 1) -> float:
    """The gain of the step if the affected part of it became faster by the same factor as the rehearsal's copy.

    `times` is how often a step does what the copy did: a rehearsal of the model takes one batch. Returns 1.0 if the
    copy did not become clearly faster, or if its time does not match that part of the step.
    """
    if rehearsal.low < CLEARLY or rehearsal.now_ms > FAR_OFF * touched_ms / times:
        return 1.0
    return gain_without(summary.step_ms, touched_ms, 1 - 1 / rehearsal.ratio)


def rehearsed_words(rehearsal: Rehearsal) -> str:
    return (
        f"on a copy {rehearsal.now_ms:.3g} ms became {rehearsal.then_ms:.3g} ms "
        f"({rehearsal.ratio:.2f}x, {rehearsal.low:.2f} to {rehearsal.high:.2f} in {rehearsal.num_pairs} pairs)"
    )
