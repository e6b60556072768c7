"""Compares the gradients, buffers and updates of the first steps. In these steps base and candidate have the same
batches and nearly the same weights. Trials with rounding noise predict how far a tensor may be from the base's tensor.
If the noise alone could hide a missing tensor, this tensor is not evidence. See docs/numerics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from slipstream.records import RANDOM_DRAWS, ROUNDOFF, Fingerprint, NumericsFault, Precision, TensorKind
from slipstream.verify.tensor_distance import SIGNS, Distances, TensorDistance, distances, joined

ENOUGH = 0.5  # the evidence must carry at least this share of the norm of the update
# Sketches of 251 numbers estimate an error and the norm that it is relative to. The estimate may be too large by this
# factor.
ESTIMATE = 1.25
KINDS: tuple[TensorKind, ...] = ("gradient", "buffer", "update")


class Allowance(msgspec.Struct, frozen=True):
    """How far a candidate may be from the base, as multiples of what the noise predicts. Floors are relative: 0.01 is
    one percent of the base's norm."""

    times: float  # for one tensor
    times_together: float  # for all tensors as one vector, where chance averages out
    floor: float  # for one tensor
    floor_together: float  # for all tensors as one vector
    later: float  # factor of the floors in later steps, in which the weights are no longer equal


# The factor is 30 because the sums inside an operator are reordered, which moves a result by several roundings. The
# floors allow for decisions that differ in the candidate but in no draw of the noise, such as whether a ReLU lets an
# activation pass. About one activation in 10^7 is close enough to zero for this. Each of these activations removes or
# adds its own part of the gradient, so together they move the gradient by the root of 10^-7, or 0.0003. The floor for
# all tensors is ten times as large, and the floor for a single tensor is a hundred times as large.
REORDERED = Allowance(times=30, times_together=30, floor=0.03, floor_together=0.003, later=10)


def approximate(precision: Precision) -> Allowance:
    """Returns the allowance for a precision. Eight is twice the largest error of one tensor under bf16 autocast,
    relative to the prediction (2.2 in benchmarks/numerics_errors.py, 3.9 in tests/verify). Errors exceed the prediction
    because some kernels also sum in bf16. The error of all tensors together is close to the prediction."""
    u = ROUNDOFF[precision]
    return Allowance(times=8, times_together=2, floor=8 * u, floor_together=2 * u, later=1)


def allowance_of(precision: Precision, draws: Sequence[Fingerprint]) -> Allowance:
    """Returns the allowance for a candidate that names this precision. fp32 means that the candidate names no
    precision. If the script itself computes in bf16 or fp16, its rounding differs by roundings of that precision."""
    coarsest = max((precision, *(draw.own_precision for draw in draws)), key=lambda one: ROUNDOFF[one])
    return REORDERED if coarsest == "fp32" else approximate(coarsest)


def luck(numel: int) -> float:
    """Returns a factor for the largest error of three or four draws, because the next draw may have a larger error by
    chance. The factor is large for a single number, and close to 1 for a tensor of many numbers."""
    return 1 + 2 / max(1, numel)


class TensorLimit(msgspec.Struct, frozen=True):
    """How far a tensor may be from the base's tensor: limits for its error and for the change of its norm."""

    error: float
    norm: float
    steady: float = math.inf  # for an update: limit of the error without the numbers that signs may have moved

    @property
    def is_evidence(self) -> bool:
        """Whether a missing tensor, whose error is 1, would be noticed."""
        return min(self.error, self.norm) < 1


class StepTest:
    """The test of one candidate. Gradients are tested first, then buffers and updates, each step by step. `fault`
    describes the worst difference in the first step that has a difference above its limit, or is None."""

    def __init__(
        self, base: Fingerprint, candidate: Fingerprint, draws: Sequence[Fingerprint], allowance: Allowance
    ) -> None:
        self._allowance = allowance
        self.fault: NumericsFault | None = None
        self.tensors: set[str] = set()  # names of the tensors with a gradient that is not zero
        self.evidence: set[str] = set()
        self.unpredicted: set[str] = set()  # gradients of steps that too few draws reached
        self.worst_gradient = 0.0  # the largest error of a gradient that is evidence
        self._gradients: Distances = {}  # for each tensor, the first gradient
        self._updates: Distances = {}
        for kind in KINDS:
            predicted = _running_maxima([distances(kind, base, draw) for draw in draws])
            found = distances(kind, base, candidate)
            for step in sorted(found):
                self._test(kind, step, found[step], predicted.get(step, []), is_later=step > min(found))

    def has_enough_evidence(self) -> bool:
        """Whether the evidence carries enough of the tensors' first updates to decide anything. Without updates, the
        first gradients are used."""
        found = self._updates or self._gradients
        whole, evident = joined(found, found.keys()), joined(found, self.evidence)
        return bool(self.evidence) and evident.base_norm >= ENOUGH * whole.base_norm

    def _test(self, kind: TensorKind, step: int, found: Distances, draws: Sequence[Distances], is_later: bool) -> None:
        excess: list[tuple[float, NumericsFault]] = []
        limits = {name: self._limit(kind, name, one, draws, is_later) for name, one in found.items()}
        num_draws = Counter(name for draw in draws for name in draw)
        predicted = {name for name, one in found.items() if one.base_norm and num_draws[name] >= RANDOM_DRAWS}
        evidence = {name for name in predicted if limits[name].is_evidence}
        for name, one in found.items():
            if one.trouble:
                if one.trouble == "not_finite" or name in evidence or one.trouble == "extra":
                    excess.append((float("inf"), NumericsFault(one.trouble, kind, name, step)))
            elif name in evidence or not one.base_norm:
                excess += _excess(kind, name, step, one, limits[name])
        names = {fault.name for _, fault in excess}
        if len(names) <= max(1, len(evidence) / 2):
            self._note(excess)
        whole = joined(found, evidence)
        self._note(_excess(kind, "", step, whole, self._limit_together(kind, evidence, whole, draws, is_later)))
        self._note(excess)
        if kind == "gradient":
            self._gradients = {**found, **self._gradients}
            self.unpredicted |= {name for name, one in found.items() if one.base_norm} - predicted
            self.tensors |= {name for name, one in found.items() if one.base_norm}
            self.evidence |= evidence
            errors = [found[name].error for name in evidence if not found[name].trouble]
            self.worst_gradient = max([self.worst_gradient, *errors])
        elif kind == "update":
            self._updates = {**found, **self._updates}

    def _note(self, excess: Sequence[tuple[float, NumericsFault]]) -> None:
        """Stores the worst of these faults if no earlier fault is known. If only a few tensors have a fault, `_test`
        passes the faults of single tensors first. If many have one, it passes the fault of all tensors together
        first."""
        if excess and self.fault is None:
            self.fault = max(excess, key=lambda pair: pair[0])[1]

    def _limit(
        self, kind: TensorKind, name: str, one: TensorDistance, draws: Sequence[Distances], is_later: bool
    ) -> TensorLimit:
        seen = [draw[name] for draw in draws if name in draw and not draw[name].trouble]
        return self._limit_of(kind, one, self._allowance.floor, self._allowance.times, seen, is_later)

    def _limit_together(
        self, kind: TensorKind, evidence: set[str], whole: TensorDistance, draws: Sequence[Distances], is_later: bool
    ) -> TensorLimit:
        seen = [joined(draw, evidence) for draw in draws]
        allowance = self._allowance
        return self._limit_of(kind, whole, allowance.floor_together, allowance.times_together, seen, is_later)

    def _limit_of(
        self,
        kind: TensorKind,
        one: TensorDistance,
        floor: float,
        times: float,
        draws: Sequence[TensorDistance],
        is_later: bool,
    ) -> TensorLimit:
        floors = self._floors_of_update(one) if kind == "update" else TensorLimit(0.0, 0.0, 0.0)
        later = self._allowance.later if is_later else 1
        error = max((draw.error for draw in draws), default=0.0)
        chance_error = max((draw.chance_error for draw in draws), default=0.0)
        norm_error = max((draw.sure_norm_error for draw in draws), default=0.0)
        # If single decisions differ, the error of one draw may be far larger than the errors of the other draws. The
        # largest share that the change of the norm had in the error of any draw is then applied to this error.
        share = max((draw.sure_norm_error / draw.error for draw in draws if 0 < draw.error < math.inf), default=0.0)
        return TensorLimit(
            max(later * max(floor, floors.error), luck(one.numel) * times * error),
            max(later * max(floor, floors.norm), luck(1) * times * norm_error, times * min(share, 1.0) * error),
            max(later * max(floor, floors.steady), luck(one.numel) * times * chance_error),
        )

    def _floors_of_update(self, one: TensorDistance) -> TensorLimit:
        """Returns how far an update may move although its gradient agrees. The causes are the rounding of the weights,
        and signs. An adaptive optimizer moves each weight by a step in the direction of its gradient's sign, even if
        the gradient is only a rounding error. If a gradient near zero changes its sign, the weight therefore moves by
        two steps. If the gradient is zero only in the base, the weight moves by one step. A changed sign turns the
        update and does not change its norm. The third limit is for the update without the numbers that signs may have
        moved, because a fault of the optimizer also moves all other numbers."""
        if not one.base_norm:
            floor = math.inf if one.resolution or one.num_unzeroed else 0.0
            return TensorLimit(floor, floor, floor)
        rounding = self._allowance.times * one.resolution / one.base_norm
        if not one.num_moved:
            return TensorLimit(math.inf, math.inf) if one.num_unzeroed else TensorLimit(rounding, rounding)
        step = ESTIMATE / math.sqrt(one.num_moved)  # the step of one weight, relative to the norm of the update
        unzeroed = max(rounding, step * math.sqrt(one.num_unzeroed))
        flipped = 2 * step * math.sqrt(SIGNS + one.num_flipped)
        return TensorLimit(math.hypot(unzeroed, flipped), unzeroed, rounding)


def _excess(
    kind: TensorKind, name: str, step: int, one: TensorDistance, limit: TensorLimit
) -> list[tuple[float, NumericsFault]]:
    found = []
    if one.error > limit.error:
        fault = NumericsFault("error", kind, name, step, seen=one.error, allowed=limit.error)
        found.append((one.error / limit.error, fault))
    if one.steady_error > limit.steady:
        fault = NumericsFault("error", kind, name, step, seen=one.steady_error, allowed=limit.steady)
        found.append((one.steady_error / limit.steady, fault))
    allowed = limit.norm + one.norm_uncertainty
    if one.norm_error > allowed:
        fault = NumericsFault("norm", kind, name, step, seen=one.norm_error, allowed=allowed)
        found.append((one.norm_error / allowed, fault))
    return found


def _running_maxima(draws: Sequence[Mapping[int, Distances]]) -> dict[int, list[Distances]]:
    """Returns for each step the draws of this step and of all earlier steps. Deviations grow from step to step, and at
    a single step a draw may be close to the base by chance."""
    steps = sorted({step for draw in draws for step in draw})
    return {step: [draw[at] for at in steps if at <= step for draw in draws if at in draw] for step in steps}
