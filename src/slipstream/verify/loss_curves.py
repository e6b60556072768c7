"""Compares loss curves: step by step if both trainings saw the same batches, window by window if they did not.

The deviations of the controls (another seed, other rounding) determine how far a candidate may deviate. See
docs/numerics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

import msgspec

from slipstream.records import Fingerprint

Curve = dict[int, float]  # step to loss

MAX_WINDOWS = 6
WINDOW_STEPS = 8  # at least
FIRST_STEPS = 3  # are compared one by one
DEVIATIONS = 4.0  # standard errors of a window's mean; chance alone exceeds this in one of 16,000 windows
SEED_TIMES = 3.0  # times the deviation of another seed
RIPPLE_TIMES = 3.0  # times the deviation of a control's fluctuations from the base's
MISALIGNED = 1.0  # times the base's own fluctuations; curves of other batches are 1.4 or 1.7 of them apart


def curves(fingerprint: Fingerprint) -> list[Curve]:
    """One curve for each of the losses of a step. A GAN has two, gradient accumulation several."""
    found: list[Curve] = []
    num_seen: dict[int, int] = {}
    for step, value in fingerprint.losses:
        at = num_seen.get(step, 0)
        num_seen[step] = at + 1
        if at == len(found):
            found.append({})
        found[at][step] = value
    return found


def is_divided(base: Fingerprint, candidate: Fingerprint) -> bool:
    """Whether the candidate receives every batch of the base in pieces, each with its share of the loss."""
    ours, theirs = (Counter(step for step, _ in one.losses) for one in (base, candidate))
    both = sorted(set(ours) & set(theirs))[:-1]  # the last step may still lack a loss
    return bool(both) and all(theirs[step] > ours[step] for step in both)


def added_up(fingerprint: Fingerprint) -> Fingerprint:
    """The sum of all losses of a step, without the last step, which may still lack some."""
    sums: Curve = {}
    for step, value in fingerprint.losses:
        sums[step] = sums.get(step, 0.0) + value
    return msgspec.structs.replace(fingerprint, losses=list(sums.items())[:-1])


def common_steps(base: Curve, other: Curve) -> list[int]:
    """The steps at which the base's loss is finite and the other training has a loss."""
    return [step for step, value in base.items() if step in other and math.isfinite(value)]


def find_non_finite(base: Fingerprint, candidate: Fingerprint) -> str:
    for ours, theirs in zip(curves(base), curves(candidate), strict=False):
        for step in common_steps(ours, theirs):
            if not math.isfinite(theirs[step]):
                return f"the loss is {theirs[step]} at step {step}, and the base's is {ours[step]:.4g}"
    return ""


def find_stray_step(
    base: Curve, candidate: Curve, controls: Sequence[tuple[Curve, float]], floors: tuple[float, float]
) -> str:
    """Compares curves that saw the same batches. Returns a fault as half a sentence, or "".

    The first steps are compared one by one, and may differ by a multiple of what each control differs by. Later steps
    are compared by windows: their fluctuations come from the batches and must match the base's. The two floors are
    relative and belong to the first step and to later ones.
    """
    steps = common_steps(base, candidate)
    first, floor = (share * _scale(base, steps) for share in floors)
    limit = 0.0
    for at, step in enumerate(steps[:FIRST_STEPS]):
        limit = max(
            [
                limit,
                first if at == 0 else floor,
                *(times * abs(control[step] - base[step]) for control, times in controls if step in control),
            ]
        )
        if abs(candidate[step] - base[step]) > limit:
            return f"the loss is {candidate[step]:.5g} at step {step}, and the base's is {base[step]:.5g}"
    widest = 0.0
    for window in _windows(steps):
        widest = max([widest, *(_ripple(base, window, control) for control, _ in controls)])
        limit = max(floor, MISALIGNED * _ripple(base, window), RIPPLE_TIMES * widest)
        if _ripple(base, window, candidate) > limit:
            return f"losses do not follow the base's in steps {window[0]} to {window[-1]}: other batches?"
    return ""


def find_stray_window(base: Curve, candidate: Curve, seeds: Sequence[Curve]) -> str:
    """Compares curves that need not have seen the same batches, by the means of windows."""
    for window in windows_of(base, candidate, seeds):
        if abs(window.theirs - window.ours) > window.limit:
            where = f"in steps {window.first} to {window.last}"
            means = f"the mean loss is {window.theirs:.4g} {where}, the base's {window.ours:.4g}"
            return f"{means}: more than chance and other seeds explain"
    return ""


class LossWindow(NamedTuple):
    """A range of steps, the mean losses of base and candidate in it, and how far apart these may be."""

    first: int
    last: int
    ours: float
    theirs: float
    limit: float


def windows_of(base: Curve, candidate: Curve, seeds: Sequence[Curve]) -> list[LossWindow]:
    """The windows, in order."""
    steps = common_steps(base, candidate)
    windows = _windows(steps)
    other_seed = max((_shift(base, seed, windows) for seed in seeds), default=0.0)
    found = []
    for window in windows:
        by_chance = math.hypot(_spread(base, window), _spread(candidate, window)) / math.sqrt(len(window))
        limit = max(DEVIATIONS * by_chance, SEED_TIMES * other_seed, 1e-3 * _scale(base, steps))
        found.append(LossWindow(window[0], window[-1], _mean(base, window), _mean(candidate, window), limit))
    return found


def worst_loss(base: Curve, candidate: Curve) -> float | None:
    """The largest difference in one step, relative to the base's usual loss."""
    steps = common_steps(base, candidate)
    scale = _scale(base, steps)
    away = [abs(candidate[step] - base[step]) for step in steps if math.isfinite(candidate[step])]
    return max(away, default=0.0) / scale if scale else None


def _windows(steps: Sequence[int]) -> list[Sequence[int]]:
    num_windows = max(1, min(MAX_WINDOWS, len(steps) // WINDOW_STEPS))
    size = max(1, math.ceil(len(steps) / num_windows))
    return [steps[at : at + size] for at in range(0, len(steps), size)]


def _shift(base: Curve, seed: Curve, windows: Sequence[Sequence[int]]) -> float:
    """How far another seed's windows usually are from the base's."""
    seen = [window for window in windows if all(step in seed for step in window)]
    return math.sqrt(fmean([(_mean(seed, window) - _mean(base, window)) ** 2 for window in seen] or [0.0]))


def _mean(curve: Curve, window: Sequence[int]) -> float:
    return fmean(curve[step] for step in window)


def _spread(curve: Curve, window: Sequence[int]) -> float:
    """Standard deviation around the window's mean. It includes the trend in the window, which only widens the band."""
    mean = _mean(curve, window)
    return math.sqrt(sum((curve[step] - mean) ** 2 for step in window) / max(1, len(window) - 1))


def _ripple(base: Curve, window: Sequence[int], other: Curve | None = None) -> float:
    """Root mean square of the changes from step to step, of the base or of its difference to another curve."""
    known = [step for step in window if other is None or step in other]
    away = [base[step] - (other[step] if other is not None else 0.0) for step in known]
    return math.sqrt(fmean([(right - left) ** 2 for left, right in pairwise(away)] or [0.0]))


def _scale(base: Curve, steps: Sequence[int]) -> float:
    return fmean([abs(base[step]) for step in steps] or [0.0])
