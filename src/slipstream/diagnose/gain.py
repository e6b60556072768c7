"""What a cure can give at most: Amdahl's law, and nothing more optimistic.

What the small races at the end of the ride say about a remedy."""

from __future__ import annotations

from slipstream.records import Rehearsal, Session, Summary

LEAST_GAIN = 1.03  # below this nobody would notice, and the machine's noise is larger


def gain_of(step_ms: float, then_ms: float) -> float:
    """Step now over step then; never below 1."""
    if step_ms <= 0 or then_ms >= step_ms:
        return 1.0
    return step_ms / max(then_ms, step_ms * 1e-3)


def gain_without(step_ms: float, removable_ms: float, share: float = 1.0) -> float:
    """The gain if `share` of the removable time went away and nothing else changed."""
    return gain_of(step_ms, step_ms - min(max(removable_ms, 0.0), step_ms) * share)


FAR_OFF = 3.0  # times as long as in the script: something else ran beside the copy
CLEARLY = 1.02  # what the interval must lie beyond before a remedy is believed


def rehearsal_of(session: Session, remedy: str) -> Rehearsal | None:
    return next((rehearsal for rehearsal in session.rehearsals if rehearsal.remedy == remedy), None)


def rehearsed_gain(summary: Summary, rehearsal: Rehearsal, touched_ms: float) -> float:
    """The step's gain if the touched part of it became quicker as the copy did; 1.0 if the copy did not clearly, or was
    no picture of that part."""
    if rehearsal.low < CLEARLY or rehearsal.now_ms > FAR_OFF * touched_ms:
        return 1.0
    return gain_without(summary.step_ms, touched_ms, 1 - 1 / rehearsal.ratio)


def rehearsed_words(rehearsal: Rehearsal) -> str:
    return (
        f"on a copy {rehearsal.now_ms:.3g} ms became {rehearsal.then_ms:.3g} ms "
        f"({rehearsal.ratio:.2f}x, {rehearsal.low:.2f} to {rehearsal.high:.2f} in {rehearsal.num_pairs} pairs)"
    )
