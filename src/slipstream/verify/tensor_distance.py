"""Measures how far a trial's sketched tensors are from the base's, for each tensor and for all together. Judges
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from statistics import median

import msgspec

from slipstream.records import Fingerprint, Sketch, Snapshot

WEAK = 1e-2


class TensorDistance(msgspec.Struct, frozen=True):
    """The distance of one tensor, relative to the base's norm."""

    name: str
    norm: float  # of the base
    error: float
    trouble: str = ""  # a difference that has no size: "is not finite", "is missing"
    is_count: bool = False  # a single integer: equal or not


class TensorDistances(msgspec.Struct, frozen=True):
    """The distances of one snapshot."""

    tensors: dict[str, TensorDistance]
    together: float = 0.0  # the error of all tensors as one vector
    norm_ratio: float = 1.0  # norm of all tensors as one vector; 0.9 if gradients were scaled by 0.9

    @property
    def typical(self) -> float:
        return median([gap.error for gap in self.tensors.values() if not gap.trouble] or [0.0])


def gradient_gaps(
    base: Fingerprint, other: Fingerprint, negligible: float, weak: Collection[str] = ()
) -> dict[int, TensorDistances]:
    """Distances by step, for the steps that both fingerprints contain.

    A gradient smaller than `negligible` relative to the largest is measured against the largest. A gradient in `weak`
    is measured so already if it is smaller than WEAK.
    """
    return {step: _gaps(left.gradients, right.gradients, negligible, weak) for step, left, right in _pairs(base, other)}


def buffer_gaps(base: Fingerprint, other: Fingerprint) -> dict[int, TensorDistances]:
    return {step: _gaps(left.buffers, right.buffers, 1e-6) for step, left, right in _pairs(base, other)}


def weak_gradients(base: Fingerprint, controls: Sequence[Fingerprint]) -> set[str]:
    """The gradients that rounding alone moves by a hundredth or more at the first step.

    An example is a bias before batch norm, whose gradient would be zero without rounding. In lower precision it
    consists of the rounding of that precision.
    """
    found = [gradient_gaps(base, control, 1e-9) for control in controls]
    firsts = [gaps[min(gaps)] for gaps in found if gaps]
    return {gap.name for gaps in firsts for gap in gaps.tensors.values() if gap.error > WEAK}


def _pairs(base: Fingerprint, other: Fingerprint) -> list[tuple[int, Snapshot, Snapshot]]:
    theirs = {snapshot.step: snapshot for snapshot in other.snapshots}
    return [(ours.step, ours, theirs[ours.step]) for ours in base.snapshots if ours.step in theirs]


def _gaps(
    base: Sequence[Sketch], other: Sequence[Sketch], negligible: float, weak: Collection[str] = ()
) -> TensorDistances:
    theirs = _matched(base, other)
    largest = max((one.norm for one in base if not one.num_bad), default=0.0)
    tensors = {}
    square_error = square_base = square_other = 0.0
    for ours in base:
        if ours.num_bad:
            continue  # the base's own value is not finite, so there is nothing to compare with
        name, match = ours.name, theirs.pop(ours.name, None)
        scale = max(ours.norm, (WEAK if name in weak else negligible) * largest)
        trouble = _trouble(ours, match, negligible * largest)
        if trouble or match is None:
            tensors[name] = TensorDistance(name, ours.norm, math.inf if trouble else 0.0, trouble)
            continue
        distance = math.dist(ours.values, match.values)
        error = distance / scale if scale else (0.0 if distance == 0.0 else math.inf)
        tensors[name] = TensorDistance(name, ours.norm, error, is_count=_is_count(ours))
        square_error += distance**2
        square_base += ours.norm**2
        square_other += match.norm**2
    known = {one.name for one in base}
    for name, extra in theirs.items():
        if name not in known and (extra.num_bad or extra.norm > negligible * largest):
            tensors[name] = TensorDistance(name, 0.0, math.inf, "exists, and the base has none")
    if not square_base:
        return TensorDistances(tensors)
    return TensorDistances(tensors, math.sqrt(square_error / square_base), math.sqrt(square_other / square_base))


def _matched(base: Sequence[Sketch], other: Sequence[Sketch]) -> dict[str, Sketch]:
    """Matches tensors by name. If no name matches but all sizes do, as under a wrapper that renames, by position."""
    by_name = {one.name: one for one in other}
    if any(one.name in by_name for one in base) or [one.numel for one in base] != [one.numel for one in other]:
        return by_name
    return {ours.name: theirs for ours, theirs in zip(base, other, strict=True)}


def _trouble(ours: Sketch, match: Sketch | None, negligible: float) -> str:
    if match is None:
        return "is missing" if ours.norm > negligible else ""
    if match.num_bad:
        return "is not finite, and the base's is"
    return "has another size" if match.numel != ours.numel else ""


def _is_count(sketch: Sketch) -> bool:
    return sketch.numel == 1 and sketch.name.endswith("num_batches_tracked")
