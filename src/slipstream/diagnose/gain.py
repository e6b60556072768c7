"""The largest gain that a fix can give, by Amdahl's law, and what the rehearsals at the end of a check measured."""

from __future__ import annotations

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
