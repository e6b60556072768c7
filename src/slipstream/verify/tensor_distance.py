"""Measures how far the sketched tensors of a trial are from the base's, for each tensor and for all together. Judges
nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from slipstream.records import ROUNDOFF, Fingerprint, Sketch, Snapshot, TensorKind

Trouble = Literal["", "not_finite", "missing", "extra", "size"]
WHOLE_SNAPSHOTS = 3  # later ones contain only tensors whose gradient was zero before
NO_TENSOR = 1e-6  # relative to the largest; a tensor that the base does not have may be this large
# A candidate has some hundred norms. By chance one in 16,000 is farther off than four standard deviations.
DEVIATIONS = 4


class TensorDistance(msgspec.Struct, frozen=True):
    """How far one tensor is from the base's, relative to the norm of the base's."""

    numel: int
    base_norm: float
    distance: float = 0.0  # absolute
    norm: float = 0.0
    trouble: Trouble = ""  # a difference that has no size
    resolution: float = 0.0  # of an update: how far the rounding of the weights alone moves it
    norm_deviation: float = 0.0  # standard deviation of `norm` minus `base_norm`, if sketches estimate them

    @property
    def error(self) -> float:
        return _ratio(self.distance, self.base_norm)

    @property
    def norm_error(self) -> float:
        """0.1 for a gradient that was scaled by 0.9. Rounding moves it far less than the error: it turns a gradient and
        hardly changes its size."""
        return _ratio(abs(self.norm - self.base_norm), self.base_norm)

    @property
    def norm_uncertainty(self) -> float:
        """How much of `norm_error` may come from the sketches alone."""
        return _ratio(DEVIATIONS * self.norm_deviation, self.base_norm)

    @property
    def sure_norm_error(self) -> float:
        return max(0.0, self.norm_error - self.norm_uncertainty)


Distances = dict[str, TensorDistance]  # by the tensor's name


def distances(kind: TensorKind, base: Fingerprint, other: Fingerprint) -> dict[int, Distances]:
    """The distances by step, for the steps that both fingerprints contain."""
    theirs = dict(_tensors(kind, other))
    found = {step: _distances(ours, theirs[step]) for step, ours in _tensors(kind, base) if step in theirs}
    if kind == "update":
        found = {step: _of_updates(them, base, step) for step, them in found.items()}
    return {step: them if step < WHOLE_SNAPSHOTS else _in_both(them) for step, them in found.items()}


def joined(found: Mapping[str, TensorDistance], names: Collection[str]) -> TensorDistance:
    """The distance of the named tensors as one vector."""
    known = [found[name] for name in names if name in found and not found[name].trouble]
    base_norm = math.hypot(*(one.base_norm for one in known))
    return TensorDistance(
        sum(one.numel for one in known),
        base_norm,
        math.hypot(*(one.distance for one in known)),
        math.hypot(*(one.norm for one in known)),
        # Each tensor moves the joint norm by its part in it.
        norm_deviation=_ratio(math.hypot(*(one.base_norm * one.norm_deviation for one in known)), base_norm),
    )


def _of_updates(found: Distances, base: Fingerprint, step: int) -> Distances:
    """Adds what is known about updates alone: the resolution of the weights, and how well the norm is known. The norms
    of gradients and buffers are exact. The norm of an update is that of a difference of sketches. A sketch of k numbers
    estimates the product of base and difference with a standard deviation of 1/sqrt(k) of the product of their norms,
    and the change of the norm with 1/sqrt(k) of the norm of the difference."""
    snapshot = next(one for one in base.snapshots if one.step == step)
    weights = {sketch.name: sketch for sketch in snapshot.weights}
    updates = {}
    for name, one in found.items():
        sketch = weights.get(name)
        if sketch is None:  # the candidate updates a tensor that the base does not
            updates[name] = one
            continue
        is_exact = sketch.numel == len(sketch.values)
        updates[name] = msgspec.structs.replace(
            one,
            resolution=ROUNDOFF["fp32"] * sketch.norm,
            norm_deviation=0.0 if is_exact else one.distance / math.sqrt(len(sketch.values)),
        )
    return updates


def _in_both(found: Distances) -> Distances:
    return {name: one for name, one in found.items() if one.trouble not in ("missing", "extra")}


def _tensors(kind: TensorKind, fingerprint: Fingerprint) -> Iterator[tuple[int, Sequence[Sketch]]]:
    if kind == "update":
        for before, after in pairwise(fingerprint.snapshots):
            if before.weights and after.weights:
                yield before.step, _updates(before, after)
        return
    for snapshot in fingerprint.snapshots:
        yield snapshot.step, snapshot.gradients if kind == "gradient" else snapshot.buffers


def _updates(before: Snapshot, after: Snapshot) -> list[Sketch]:
    """The sketch of a difference is the difference of the sketches."""
    later = {sketch.name: sketch for sketch in after.weights}
    updates = []
    for old in before.weights:
        new = later.get(old.name)
        if new is None or new.numel != old.numel:
            continue
        values = [right - left for left, right in zip(old.values, new.values, strict=True)]
        updates.append(Sketch(old.name, old.numel, math.hypot(*values), values, old.num_bad + new.num_bad))
    return updates


def _distances(base: Sequence[Sketch], other: Sequence[Sketch]) -> Distances:
    theirs = _matched(base, other)
    largest = max((one.norm for one in base if not one.num_bad), default=0.0)
    found = {}
    for ours in base:
        match = theirs.pop(ours.name, None)
        if ours.num_bad:
            continue  # the base's own value is not finite, so there is nothing to compare with
        if match is None:
            found[ours.name] = TensorDistance(ours.numel, ours.norm, ours.norm, 0.0, "missing" if ours.norm else "")
        elif match.num_bad:
            found[ours.name] = TensorDistance(ours.numel, ours.norm, trouble="not_finite")
        elif match.numel != ours.numel:
            found[ours.name] = TensorDistance(ours.numel, ours.norm, trouble="size")
        else:
            is_nothing = not ours.norm and match.norm <= NO_TENSOR * largest
            distance = 0.0 if is_nothing else math.dist(ours.values, match.values)
            found[ours.name] = TensorDistance(ours.numel, ours.norm, distance, match.norm)
    known = {one.name for one in base}
    for name, extra in theirs.items():
        if name not in known and (extra.num_bad or extra.norm > NO_TENSOR * largest):
            found[name] = TensorDistance(extra.numel, 0.0, extra.norm, extra.norm, "extra")
    return found


def _matched(base: Sequence[Sketch], other: Sequence[Sketch]) -> dict[str, Sketch]:
    """Matches tensors by name. If no name matches but all sizes do, as under a wrapper that renames, by position."""
    by_name = {one.name: one for one in other}
    if any(one.name in by_name for one in base) or [one.numel for one in base] != [one.numel for one in other]:
        return by_name
    return {ours.name: theirs for ours, theirs in zip(base, other, strict=True)}


def _ratio(value: float, base: float) -> float:
    if base:
        return value / base
    return math.inf if value else 0.0
