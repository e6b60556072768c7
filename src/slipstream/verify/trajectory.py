"""Compares loss curves. Up to the horizon, losses are compared step by step in windows. The horizon is the step after
which rounding noise alone separates two trainings so far that other batches would not be noticed. Beyond the horizon,
and if other random numbers were drawn, only the level of the losses is compared. See docs/numerics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, variance
from typing import NamedTuple

import msgspec

from slipstream.records import Fingerprint, NumericsFault

Curve = dict[int, float]  # step to loss
CurveKey = tuple[int, int]  # number of losses in a step, and the place of this loss among them

WINDOW_STEPS = 8  # with fewer losses, chance in the candidate cannot be compared with chance in the controls
LEVEL_WINDOWS = 6  # the most windows; longer windows have means that vary less
FLUCTUATION_SHARE = 0.1  # smaller differences, as a share of the base's fluctuation, need no explanation
MIN_REFERENCES = 3  # trainings, including the base, that are needed to show which levels are usual
# Two-sided 1% quantiles of Student's t by degrees of freedom.
_T_QUANTILES = {2: 9.92, 3: 5.84, 4: 4.60, 5: 4.03, 6: 3.71, 7: 3.50, 8: 3.36, 9: 3.25, 10: 3.17}


def curves(fingerprint: Fingerprint) -> dict[CurveKey, Curve]:
    """Returns one curve for each loss of a step. A step of a GAN has two losses, and gradient accumulation has several.
    Steps with different numbers of losses have separate curves. For example, if a generator is updated only in every
    fifth step, the first loss of such a step belongs to the generator. The first loss of any other step belongs to the
    critic."""
    by_step: dict[int, list[float]] = {}
    for step, value in fingerprint.losses:
        by_step.setdefault(step, []).append(value)
    found: dict[CurveKey, Curve] = {}
    for step, values in by_step.items():
        for place, value in enumerate(values):
            found.setdefault((len(values), place), {})[step] = value
    return found


def pairs_of(base: Fingerprint, candidate: Fingerprint) -> dict[CurveKey, tuple[Curve, Curve]]:
    """Returns pairs of curves of the same loss in two trainings."""
    theirs = curves(candidate)
    return {key: (curve, theirs[key]) for key, curve in curves(base).items() if key in theirs}


def curves_of(fingerprints: Sequence[Fingerprint], key: CurveKey) -> list[Curve]:
    """Returns the curves of one loss in several trainings."""
    return [found[key] for found in map(curves, fingerprints) if key in found]


def is_divided(base: Fingerprint, candidate: Fingerprint) -> bool:
    """Whether the candidate has more losses than the base in every step. Such a candidate receives every batch of the
    base in pieces, each with its share of the loss."""
    ours, theirs = (Counter(step for step, _ in one.losses) for one in (base, candidate))
    both = sorted(set(ours) & set(theirs))[:-1]  # the last step may still lack a loss
    return bool(both) and all(theirs[step] > ours[step] for step in both)


def added_up(fingerprint: Fingerprint) -> Fingerprint:
    """Returns the fingerprint with the sum of all losses of each step. The last step is left out, because it may still
    lack losses."""
    sums: Curve = {}
    for step, value in fingerprint.losses:
        sums[step] = sums.get(step, 0.0) + value
    return msgspec.structs.replace(fingerprint, losses=list(sums.items())[:-1])


def common_steps(base: Curve, other: Curve) -> list[int]:
    """Returns the steps at which the base's loss is finite and the other training has a loss."""
    return [step for step, value in base.items() if step in other and math.isfinite(value)]


def find_non_finite(base: Fingerprint, candidate: Fingerprint) -> NumericsFault | None:
    for ours, theirs in pairs_of(base, candidate).values():
        for step in common_steps(ours, theirs):
            if not math.isfinite(theirs[step]):
                return NumericsFault("not_finite_loss", step=step, seen=theirs[step], allowed=ours[step])
    return None


class LossWindow(NamedTuple):
    """A range of steps, with the mean losses and the limit of their difference. `theirs` is the mean of the candidate.
    `ours` is the mean of the base or, if levels are compared, of all correct trainings."""

    first: int
    last: int
    ours: float
    theirs: float
    limit: float


class Horizon(msgspec.Struct, frozen=True):
    """Windows of steps within which losses are compared step by step, each with the difference that is allowed."""

    windows: list[tuple[Sequence[int], float]]
    num_steps: int  # steps before the horizon

    def find_fault(self, base: Curve, candidate: Curve) -> NumericsFault | None:
        """Returns a fault for the first window in which the candidate's losses are farther from the base's losses than
        allowed, or None."""
        for steps, allowed in self.windows:
            known = [step for step in steps if step in candidate]
            seen = _difference(base, candidate, known)
            if seen > allowed:
                return NumericsFault("losses", step=known[0], last_step=known[-1], seen=seen, allowed=allowed)
        return None

    def loss_windows(self, base: Curve, candidate: Curve, most: int) -> list[LossWindow]:
        """Returns the windows that both curves reach, with the mean losses. Neighbouring windows are joined so that at
        most `most` remain."""
        known = [one for one in self.windows if all(math.isfinite(candidate.get(step, math.nan)) for step in one[0])]
        size = math.ceil(len(known) / most)
        found = []
        for at in range(0, len(known), max(1, size)):
            steps = [step for window, _ in known[at : at + size] for step in window]
            allowed = max(limit for _, limit in known[at : at + size])
            found.append(LossWindow(steps[0], steps[-1], _mean(base, steps), _mean(candidate, steps), allowed))
        return found


def find_horizon(base: Curve, draws: Sequence[Curve], times: float) -> Horizon:
    """Returns the horizon and the windows before it. In each window the candidate may be `times` as far from the base
    as the farthest draw of the noise up to this window. The horizon is where this limit reaches the difference between
    the base's losses of neighbouring steps, because from there on the comparison shows nothing."""
    steps = [step for step, value in base.items() if math.isfinite(value)]
    windows, widest = [], 0.0
    for window in _windows(steps):
        reached = [draw for draw in draws if window[-1] in draw]
        if not reached:
            break
        widest = max([widest, *(_difference(base, draw, window) for draw in reached)])
        fluctuation = _fluctuation(base, window)
        if not times * widest < fluctuation:
            break
        windows.append((window, max(times * widest, FLUCTUATION_SHARE * fluctuation)))
    return Horizon(windows, windows[-1][0][-1] + 1 if windows else 0)


def level_windows(base: Curve, candidate: Curve, references: Sequence[Curve], from_step: int = 0) -> list[LossWindow]:
    """Compares the candidate's mean loss in each window with the means of the base and of the references, which are
    correct trainings. The limit comes from a t-test of one training against all of these trainings. The limit is
    infinite with too few references. The result is empty if there are too few steps for one window."""
    steps = [step for step in common_steps(base, candidate) if step >= from_step and math.isfinite(candidate[step])]
    correct = [base, *references]
    windows = _windows(steps, LEVEL_WINDOWS) if len(steps) >= WINDOW_STEPS else []
    levels = []
    for window in windows:
        known = [curve for curve in correct if all(math.isfinite(curve.get(step, math.nan)) for step in window)]
        levels.append([_mean(curve, window) for curve in known])
    spread = fmean([variance(means) for means in levels if len(means) >= MIN_REFERENCES] or [0.0])
    found = []
    for window, means in zip(windows, levels, strict=True):
        limit = math.inf
        if len(means) >= MIN_REFERENCES:
            # If all trainings see the same batches, their spread does not show how much a mean depends on the batches.
            by_chance = _fluctuation(base, window) ** 2 / len(window)
            quantile = _T_QUANTILES[min(len(means) - 1, max(_T_QUANTILES))]
            limit = quantile * math.sqrt(max(spread, by_chance) * (1 + 1 / len(means)))
        usual = fmean(means) if means else _mean(base, window)
        found.append(LossWindow(window[0], window[-1], usual, _mean(candidate, window), limit))
    return found


def find_level_fault(windows: Sequence[LossWindow]) -> NumericsFault | None:
    for window in windows:
        away = abs(window.theirs - window.ours)
        if away > window.limit:
            return NumericsFault("level", step=window.first, last_step=window.last, seen=away, allowed=window.limit)
    return None


def find_metric_fault(
    base: Fingerprint, candidate: Fingerprint, control: Fingerprint | None, references: Sequence[Fingerprint]
) -> NumericsFault | None:
    """Compares printed evaluation results with the results of correct trainings, in the same way as levels of losses.
    Each result is compared by its mean over all times that it was printed. Results that differ between `base` and
    `control`, two runs of the same script, are ignored. Without `control` all results are ignored."""
    known, theirs = _metrics(base), _metrics(candidate)
    again = _metrics(control) if control is not None else {}
    correct = [known, *map(_metrics, references)]
    for name in {name: None for _, name in known}:
        places = [place for place in known if place[1] == name and place in theirs]
        if not places or any(again.get(place) != known[place] for place in places):
            continue
        means = [fmean(one[place] for place in places) for one in correct if all(place in one for place in places)]
        if len(means) < MIN_REFERENCES:
            continue
        seen, usual = fmean(theirs[place] for place in places), fmean(means)
        quantile = _T_QUANTILES[min(len(means) - 1, max(_T_QUANTILES))]
        allowed = max(quantile * math.sqrt(variance(means) * (1 + 1 / len(means))), FLUCTUATION_SHARE * abs(usual))
        if not abs(seen - usual) <= allowed:
            first, last = places[0][0], places[-1][0]
            return NumericsFault(
                "metric", name=name, step=first, last_step=last, seen=abs(seen - usual), allowed=allowed
            )
    return None


def worst_loss(base: Curve, candidate: Curve) -> float | None:
    """Returns the largest difference in one step, relative to the base's mean loss."""
    steps = common_steps(base, candidate)
    scale = fmean([abs(base[step]) for step in steps] or [0.0])
    away = [abs(candidate[step] - base[step]) for step in steps if math.isfinite(candidate[step])]
    return max(away, default=0.0) / scale if scale else None


def _metrics(fingerprint: Fingerprint) -> dict[tuple[int, str], float]:
    return {(step, name): value for step, name, value in fingerprint.metrics if math.isfinite(value)}


def _windows(steps: Sequence[int], most: int = 0) -> list[Sequence[int]]:
    """Divides steps into windows of equal length. The remaining steps belong to the last window."""
    num_windows = max(1, len(steps) // WINDOW_STEPS)
    num_windows = min(most, num_windows) if most else num_windows
    size = len(steps) // num_windows
    starts = [size * at for at in range(num_windows)]
    ends = [*starts[1:], len(steps)]
    return [steps[start:end] for start, end in zip(starts, ends, strict=True) if end > start]


def _mean(curve: Curve, window: Sequence[int]) -> float:
    return fmean(curve[step] for step in window)


def _difference(base: Curve, other: Curve, window: Sequence[int]) -> float:
    """Returns the root mean square of the differences in a window. The result is not finite if a loss of the other
    training is not finite."""
    return math.sqrt(fmean([(other[step] - base[step]) ** 2 for step in window if step in other] or [0.0]))


def _fluctuation(base: Curve, window: Sequence[int]) -> float:
    """Returns the root mean square of the differences between neighbouring steps, which have different batches."""
    return math.sqrt(fmean([(base[right] - base[left]) ** 2 for left, right in pairwise(window)] or [0.0]))
