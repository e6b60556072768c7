"""What a cure can give at most: Amdahl's law, and nothing more optimistic."""

from __future__ import annotations

LEAST_GAIN = 1.03  # below this nobody would notice, and the machine's noise is larger


def gain_of(step_ms: float, then_ms: float) -> float:
    """Step now over step then; never below 1."""
    if step_ms <= 0 or then_ms >= step_ms:
        return 1.0
    return step_ms / max(then_ms, step_ms * 1e-3)


def gain_without(step_ms: float, removable_ms: float, share: float = 1.0) -> float:
    """The gain if `share` of the removable time went away and nothing else changed."""
    return gain_of(step_ms, step_ms - min(max(removable_ms, 0.0), step_ms) * share)
