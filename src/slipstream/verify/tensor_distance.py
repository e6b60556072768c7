"""Measures how far the sketched tensors of a trial are from the base's tensors, for each tensor and for several tensors
as one vector. It does not judge the distances."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from slipstream.records import ROUNDOFF, Fingerprint, Sketch, Snapshot, TensorKind

Trouble = Literal["", "not_finite", "missing", "extra", "size"]
WHOLE_SNAPSHOTS = 3  # later snapshots contain only tensors whose gradient was zero or unknown before
NO_TENSOR = 1e-6  # a tensor that the base does not have may be this large, relative to the base's largest tensor
# A candidate has a few hundred norms. By chance one in 16,000 deviates by more than four standard deviations.
DEVIATIONS = 4
SIGNS = 4  # elements that may change their sign by chance, besides those that the error of the gradient explains


class TensorDistance(msgspec.Struct, frozen=True):
    """How far one tensor is from the base's tensor. The errors are relative to the norm of the base's tensor."""

    numel: int
    base_norm: float
    distance: float = 0.0  # absolute
    norm: float = 0.0
    trouble: Trouble = ""  # a difference that has no size
    norm_deviation: float = 0.0  # standard deviation of `norm` minus `base_norm`, if sketches estimate them
    # The fields below describe updates only.
    resolution: float = 0.0  # how far the rounding of the weights alone moves the update
    steady: float = 0.0  # `distance` without the numbers that signs of gradients may have moved
    chance: float = 0.0  # `distance` without the `SIGNS` numbers that differ most
    num_moved: int = 0  # elements of the base's gradient that are not zero
    num_unzeroed: int = 0  # elements that are zero in the base's gradient but not in the other gradient
    num_flipped: float = 0.0  # upper estimate of the elements whose sign the error of the gradient changes

    @property
    def error(self) -> float:
        return _ratio(self.distance, self.base_norm)

    @property
    def steady_error(self) -> float:
        return _ratio(self.steady, self.base_norm)

    @property
    def chance_error(self) -> float:
        """The error of a draw without the `SIGNS` numbers that differ most. `steady_error` leaves out at least `SIGNS`
        numbers, so it is at most as large as `chance_error`, even if signs decide much."""
        return _ratio(self.chance, self.base_norm)

    @property
    def norm_error(self) -> float:
        """The relative change of the norm, such as 0.1 for a gradient that was scaled by 0.9. Rounding changes the norm
        far less than the error, because rounding turns a gradient and hardly changes its size."""
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
    """Returns the distances by step, for the steps that both fingerprints contain."""
    theirs = dict(_tensors(kind, other))
    found = {step: _distances(ours, theirs[step]) for step, ours in _tensors(kind, base) if step in theirs}
    if kind == "update":
        ours = dict(_tensors(kind, base))
        found = {
            step: _of_updates(them, ours[step], _matched(ours[step], theirs[step]), base, other, step)
            for step, them in found.items()
        }
    return {step: them if step < WHOLE_SNAPSHOTS else _in_both(them) for step, them in found.items()}


def joined(found: Mapping[str, TensorDistance], names: Collection[str]) -> TensorDistance:
    """Returns the distance of the named tensors as one vector."""
    known = [found[name] for name in names if name in found and not found[name].trouble]
    base_norm = math.hypot(*(one.base_norm for one in known))
    return TensorDistance(
        sum(one.numel for one in known),
        base_norm,
        math.hypot(*(one.distance for one in known)),
        math.hypot(*(one.norm for one in known)),
        # A tensor changes the joint norm in proportion to its share of this norm.
        norm_deviation=_ratio(math.hypot(*(one.base_norm * one.norm_deviation for one in known)), base_norm),
        resolution=math.hypot(*(one.resolution for one in known)),
        steady=math.hypot(*(one.steady for one in known)),
        chance=math.hypot(*(one.chance for one in known)),
        num_moved=sum(one.num_moved for one in known),
        num_unzeroed=sum(one.num_unzeroed for one in known),
        num_flipped=sum(one.num_flipped for one in known),
    )


def _of_updates(
    found: Distances,
    ours: Sequence[Sketch],
    theirs: Mapping[str, Sketch],
    base: Fingerprint,
    other: Fingerprint,
    step: int,
) -> Distances:
    """Adds the figures that only updates have: the resolution of the weights, the uncertainty of the norm, and what the
    signs of the gradient may have moved. The norms of gradients and buffers are exact, but the norm of an update comes
    from a difference of sketches. A sketch of k numbers estimates the product of base and difference. The standard
    deviation of this estimate is 1/sqrt(k) of the product of their norms. The change of the norm therefore has a
    standard deviation of 1/sqrt(k) of the norm of the difference."""
    snapshot = next(one for one in base.snapshots if one.step == step)
    weights = {sketch.name: sketch for sketch in snapshot.weights}
    gradients = {sketch.name: sketch for sketch in snapshot.gradients}
    num_unzeroed, errors = _num_unzeroed(base, other, step), _gradient_errors(base, other, step)
    known = dict(found)
    for update in ours:
        name, one = update.name, found.get(update.name)
        if one is None:
            continue
        is_exact = update.numel == len(update.values)
        gradient = gradients.get(name)
        num_moved = update.numel - (gradient.num_zero if gradient is not None else 0)
        num_flipped = num_moved * min(1.0, errors.get(name, 0.0))
        num_signs = SIGNS + num_flipped + num_unzeroed.get(name, 0)
        match = None if one.trouble else theirs.get(name)
        known[name] = msgspec.structs.replace(
            one,
            norm_deviation=0.0 if is_exact else one.distance / math.sqrt(len(update.values)),
            resolution=ROUNDOFF["fp32"] * weights[name].norm,
            steady=_steady(update, match, num_signs) if match is not None else 0.0,
            chance=_steady(update, match, SIGNS) if match is not None else 0.0,
            num_moved=num_moved,
            num_unzeroed=num_unzeroed.get(name, 0),
            num_flipped=num_flipped,
        )
    return known


def _steady(ours: Sketch, theirs: Sketch, num_signs: float) -> float:
    """Returns the distance of two sketches without the `num_signs` numbers that differ most. Each element of a tensor
    is part of one number, so `num_signs` changed signs affect at most `num_signs` numbers."""
    differences = sorted(abs(right - left) for left, right in zip(ours.values, theirs.values, strict=True))
    return math.hypot(*differences[: max(0, len(differences) - math.ceil(num_signs))])


def _num_unzeroed(base: Fingerprint, other: Fingerprint, step: int) -> dict[str, int]:
    """Returns for each gradient the largest number of elements that are zero only in the base, among this step and all
    earlier steps. Earlier steps count because momentum continues earlier updates."""
    theirs = {
        (one.step, sketch.name): sketch.num_zero for one in other.snapshots for sketch in one.gradients if sketch.norm
    }
    found: dict[str, int] = {}
    for snapshot in base.snapshots:
        for sketch in snapshot.gradients:
            num_more = sketch.num_zero - theirs.get((snapshot.step, sketch.name), sketch.num_zero)
            if snapshot.step <= step:
                found[sketch.name] = max(found.get(sketch.name, 0), num_more)
    return found


def _gradient_errors(base: Fingerprint, other: Fingerprint, step: int) -> dict[str, float]:
    """Returns the largest error of each gradient up to this step. If a gradient is normally distributed, the share of
    its elements whose sign differs is a third of its error."""
    found: dict[str, float] = {}
    for at, gradients in distances("gradient", base, other).items():
        for name, one in gradients.items():
            if at <= step and not one.trouble:
                found[name] = max(found.get(name, 0.0), one.error)
    return found


def _in_both(found: Distances) -> Distances:
    return {name: one for name, one in found.items() if one.trouble not in ("missing", "extra")}


def _tensors(kind: TensorKind, fingerprint: Fingerprint) -> Iterator[tuple[int, Sequence[Sketch]]]:
    if kind == "update":
        yield from _all_updates(fingerprint.snapshots)
        return
    for snapshot in fingerprint.snapshots:
        yield snapshot.step, snapshot.gradients if kind == "gradient" else snapshot.buffers


def _all_updates(snapshots: Sequence[Snapshot]) -> list[tuple[int, list[Sketch]]]:
    """Returns the updates of each step. The update of a weight goes from one snapshot to the next snapshot that
    contains the weight. Other snapshots may lie between these two, because optimizers may take turns."""
    later: dict[str, Sketch] = {}
    found = []
    for snapshot in reversed(snapshots):
        pairs = [(old, later[old.name]) for old in snapshot.weights if old.name in later]
        updates = [_difference(old, new) for old, new in pairs if new.numel == old.numel]
        if updates:
            found.append((snapshot.step, updates))
        later |= {sketch.name: sketch for sketch in snapshot.weights}
    return found[::-1]


def _difference(old: Sketch, new: Sketch) -> Sketch:
    """Returns the sketch of a difference, which is the difference of the sketches."""
    values = [right - left for left, right in zip(old.values, new.values, strict=True)]
    return Sketch(old.name, old.numel, math.hypot(*values), values, old.num_bad + new.num_bad)


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
    """Matches tensors by name. If no name matches but all sizes do, tensors are matched by position, because a wrapper
    may have renamed them."""
    by_name = {one.name: one for one in other}
    if any(one.name in by_name for one in base) or [one.numel for one in base] != [one.numel for one in other]:
        return by_name
    return {ours.name: theirs for ours, theirs in zip(base, other, strict=True)}


def _ratio(value: float, base: float) -> float:
    if base:
        return value / base
    return math.inf if value else 0.0
