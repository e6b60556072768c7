"""Decides whether a candidate trained like the base.

It compares the fingerprints of two trials by the numerics class that the recipe claims. It uses only fingerprints, no
tensors and no techniques. docs/numerics.md explains the tolerances.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from slipstream.records import Fingerprint, Numerics, NumericsClass
from slipstream.verify.loss_curves import (
    Curve,
    added_up,
    common_steps,
    curves,
    find_non_finite,
    find_stray_step,
    find_stray_window,
    is_divided,
    worst_loss,
)
from slipstream.verify.tensor_distance import buffer_gaps, gradient_gaps, weak_gradients
from slipstream.verify.tolerances import (
    APPROXIMATE,
    NO_PRECISION,
    REORDERED,
    SMALL,
    Tolerance,
    find_buffer_fault,
    find_gradient_fault,
    percent,
    worst_error,
)

# Relative floors of the losses, at the first step and later. A skipped batch moves a loss by a percent or more,
# rounding by 1e-7, and bfloat16 by at most 1e-3.
_LOSS_FLOORS: dict[NumericsClass, tuple[float, float]] = {"reordered": (1e-5, 1e-4), "approximate": (5e-3, 5e-3)}
_NO_PRECISION_LOSS = (1e-2, 1e-2)
_TIMES = 30.0  # times the deviation of the rounding control's losses
_COARSE_TIMES = 8.0  # times the deviation of the coarse control's losses
_GRADIENT_TIMES = 1.0  # times the relative deviation of gradients that passed


def judge(
    claimed: NumericsClass,
    base: Fingerprint,
    candidate: Fingerprint,
    control: Fingerprint | None = None,
    rounding: Fingerprint | None = None,
    seed: Fingerprint | None = None,
    coarse: Fingerprint | None = None,
) -> Numerics:
    """Judges the candidate's numerics against the base.

    `control` repeats the base, `rounding` is the base perturbed by one ulp, `coarse` is the base with weights rounded
    to bfloat16, and `seed` is the base with another seed. Without them the tolerances are narrower or fewer steps are
    judged. The result's `is_sound` is None if the records do not decide it.
    """
    # With accumulation, the shares add up to the batch's loss.
    if claimed != "identical" and is_divided(base, candidate):
        base, candidate = added_up(base), added_up(candidate)
        control, rounding, seed, coarse = (one and added_up(one) for one in (control, rounding, seed, coarse))
    check = _CandidateCheck(claimed, base, candidate, control, rounding, seed, coarse)
    if check.num_common == 0:
        unseen = "no loss was seen" if not candidate.losses or not base.losses else "no step was seen in both"
        return Numerics(claimed, None, unseen)
    fault = find_non_finite(base, candidate)
    if fault:
        return check.unsound(fault)
    if claimed == "different":
        return check.sound("changes the training by design; its losses are finite, and nothing else is checked")
    difference = first_difference(base, candidate)
    if not difference:
        beyond = "" if claimed == "identical" else f", stricter than {claimed}"
        return check.sound(f"bit-equal in {check.num_common} steps{beyond}")
    if claimed == "identical":
        return check.identical(difference)
    if claimed == "redrawn":
        return check.redrawn()
    return check.close(claimed)


def first_difference(base: Fingerprint, other: Fingerprint) -> str:
    """The first bit in which two trainings differ, as half a sentence; "" if they are equal."""
    num_both = min(len(base.losses), len(other.losses))
    if base.losses[:num_both] == other.losses[:num_both]:
        return _digest_difference(base, other)
    ours_by_step, others_by_step = Counter(step for step, _ in base.losses), Counter(step for step, _ in other.losses)
    last = min(max(ours_by_step, default=0), max(others_by_step, default=0))  # this step may still lack a loss
    for step in sorted(ours_by_step):
        if step < last and others_by_step[step] != ours_by_step[step]:
            return (
                f"backward ran {others_by_step[step]} times in step {step}, and the base's {ours_by_step[step]} times"
            )
    for ours, theirs in zip(curves(base), curves(other), strict=False):
        for step in common_steps(ours, theirs):
            if ours[step] != theirs[step]:
                return f"the loss differs first at step {step}: {theirs[step]!r} against {ours[step]!r}"
    return _digest_difference(base, other)


def _digest_difference(base: Fingerprint, other: Fingerprint) -> str:
    theirs = dict(other.digests)
    for step, digest in base.digests:
        if theirs.get(step, digest) != digest:
            return f"weights or buffers differ after step {step}, though the losses until then are the same"
    return ""


class _CandidateCheck:
    """Compares one candidate with the base and the controls."""

    def __init__(
        self,
        claimed: NumericsClass,
        base: Fingerprint,
        candidate: Fingerprint,
        control: Fingerprint | None,
        rounding: Fingerprint | None,
        seed: Fingerprint | None,
        coarse: Fingerprint | None,
    ) -> None:
        self.claimed = claimed
        self.base = base
        self.candidate = candidate
        self.coarse = coarse
        self.control = control
        self.rounding = rounding
        self.seed = seed
        self.pairs = list(zip(curves(base), curves(candidate), strict=False))
        self.num_common = max((len(common_steps(*pair)) for pair in self.pairs), default=0)

    @cached_property
    def is_repeatable(self) -> bool:
        return self.control is None or not first_difference(self.base, self.control)

    @property
    def own_control(self) -> Fingerprint | None:
        """The control, if it does not repeat the base. It then shows how much the script varies by itself."""
        return None if self.is_repeatable else self.control

    @cached_property
    def controls(self) -> list[Fingerprint]:
        """Controls that are correct by construction and differ from the base only by rounding."""
        return [one for one in (self.rounding, self.own_control) if one is not None]

    @cached_property
    def redraws(self) -> list[Fingerprint]:
        """Controls that are correct by construction and differ from the base only by chance."""
        return [one for one in (self.seed, self.own_control) if one is not None]

    def identical(self, difference: str) -> Numerics:
        if self.is_repeatable:
            return self.unsound(difference)
        verdict = self.close("reordered") if self.base.snapshots and self.candidate.snapshots else self.redrawn()
        reason = f"the script does not repeat itself bit for bit; compared with its A/A control: {verdict.reason}"
        return Numerics(self.claimed, verdict.is_sound, reason, verdict.worst_gradient, verdict.worst_loss)

    def redrawn(self) -> Numerics:
        for number, (ours, theirs) in enumerate(self.pairs):
            fault = find_stray_window(ours, theirs, _curves_of(self.redraws, number))
            if fault:
                return self.unsound(fault)
        band = "the band of another seed" if self.redraws else "what chance explains"
        return self.sound(f"the loss curve stays within {band} in {self.num_common} steps")

    def close(self, judged: NumericsClass) -> Numerics:
        """Judges a candidate with the same batches and the same mathematics by gradients, buffers and losses."""
        is_approximate = judged == "approximate"
        likes = [*self.controls, *([self.coarse] if is_approximate and self.coarse is not None else [])]
        found = gradient_gaps(self.base, self.candidate, SMALL)
        if not any(gaps.tensors for gaps in found.values()):
            return Numerics(self.claimed, None, "no gradient was seen", worst_loss=self._worst_loss())
        off = worst_error(found)
        band = APPROXIMATE if is_approximate else REORDERED
        fault = self._fault(band, likes) or self._loss_fault(_LOSS_FLOORS[judged], likes)
        if not fault:
            losses = _describe_error("losses", self._worst_loss() or 0.0)
            return self.sound(f"{_describe_error('gradients', off)} at first, {losses} in {self.num_common} steps", off)
        is_unknown = is_approximate and self.coarse is None
        if not is_unknown or self._fault(NO_PRECISION, likes) or self._loss_fault(_NO_PRECISION_LOSS, likes):
            return self.unsound(fault, off)
        reason = f"{fault}; without the coarse control it is unknown whether its precision explains that"
        return Numerics(self.claimed, None, reason, off, self._worst_loss())

    def _fault(self, band: Tolerance, likes: list[Fingerprint]) -> str:
        negligible = band.negligible if self.controls else SMALL
        weak = weak_gradients(self.base, self.controls) if band is not REORDERED else set()
        gradients = gradient_gaps(self.base, self.candidate, negligible, weak)
        buffers = buffer_gaps(self.base, self.candidate)
        if not likes:  # later steps deviate by themselves, by an unknown amount
            first = min(gradients)
            gradients, buffers = {first: gradients[first]}, {first: buffers[first]}
        fault = find_gradient_fault(
            band, gradients, [gradient_gaps(self.base, like, negligible, weak) for like in likes]
        )
        return fault or find_buffer_fault(band, buffers, [buffer_gaps(self.base, like) for like in likes], gradients)

    def _loss_fault(self, floors: tuple[float, float], likes: list[Fingerprint]) -> str:
        """Judges the losses. Deviations that the gradients were allowed also appear in later losses."""
        found = gradient_gaps(self.base, self.candidate, SMALL).values()
        later = max([floors[1], *(_GRADIENT_TIMES * gaps.together for gaps in found)])
        for number, (ours, theirs) in enumerate(self.pairs):
            redraws = _curves_of(self.redraws, number)
            controls = [(curve, _TIMES) for curve in _curves_of(self.controls, number)]
            controls += [(curve, _COARSE_TIMES) for curve in _curves_of(likes[len(self.controls) :], number)]
            fault = find_stray_step(ours, theirs, controls, (floors[0], later)) or find_stray_window(
                ours, theirs, redraws
            )
            if fault:
                return fault
        return ""

    def _worst_loss(self) -> float | None:
        return max((worst_loss(*pair) or 0.0 for pair in self.pairs), default=None)

    def sound(self, reason: str, worst_gradient: float | None = None) -> Numerics:
        return Numerics(self.claimed, True, reason, worst_gradient, self._worst_loss())

    def unsound(self, reason: str, worst_gradient: float | None = None) -> Numerics:
        return Numerics(self.claimed, False, reason, worst_gradient, self._worst_loss())


def _describe_error(what: str, error: float) -> str:
    return f"{what} off by at most {percent(error)}" if error else f"{what} the same"


def _curves_of(fingerprints: list[Fingerprint], number: int) -> list[Curve]:
    """The curves of the loss with this number in each step."""
    return [found[number] for found in map(curves, fingerprints) if number < len(found)]
