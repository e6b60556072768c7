"""Did a candidate train as the base did? Compares what two riders' trainings left behind, by the class of numerics that
its recipe claims. Knows witnesses alone: no tensors, no techniques. See docs/numerics.md for the bands and why."""

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

# Of the losses, relative: at the first step, and later. A skipped batch moves them by a percent or more; rounding by
# 1e-7, bfloat16 by 1e-3 at most.
_LOSS_FLOORS: dict[NumericsClass, tuple[float, float]] = {"reordered": (1e-5, 1e-4), "approximate": (5e-3, 5e-3)}
_NO_PRECISION_LOSS = (1e-2, 1e-2)
_TIMES = 30.0  # as far as the rounding twin's losses at first
_COARSE_TIMES = 8.0  # as far as the coarse twin's
_GRADIENT_TIMES = 1.0  # as far, relatively, as gradients that passed


def judge(
    claimed: NumericsClass,
    base: Fingerprint,
    candidate: Fingerprint,
    control: Fingerprint | None = None,
    rounding: Fingerprint | None = None,
    seed: Fingerprint | None = None,
    coarse: Fingerprint | None = None,
) -> Numerics:
    """`twin` is the base once more, `rounding` moved by one ulp, `coarse` with weights rounded to bfloat16, `seed` with
    another seed. Without them bands are narrower or fewer steps are judged; what cannot be told is None."""
    if claimed != "identical" and is_divided(base, candidate):  # accumulated: the shares add up to the batch's loss
        base, candidate = added_up(base), added_up(candidate)
        control, rounding, seed, coarse = (one and added_up(one) for one in (control, rounding, seed, coarse))
    hearing = _Hearing(claimed, base, candidate, control, rounding, seed, coarse)
    if hearing.num_common == 0:
        unseen = "no loss was seen" if not candidate.losses or not base.losses else "no step of both was seen"
        return Numerics(claimed, None, unseen)
    fault = find_non_finite(base, candidate)
    if fault:
        return hearing.unsound(fault)
    if claimed == "different":
        return hearing.sound("changes the training by design; its losses are finite, no more was asked")
    difference = first_difference(base, candidate)
    if not difference:
        beyond = "" if claimed == "identical" else f", stricter than {claimed}"
        return hearing.sound(f"bit-equal in {hearing.num_common} steps{beyond}")
    if claimed == "identical":
        return hearing.identical(difference)
    if claimed == "redrawn":
        return hearing.redrawn()
    return hearing.close(claimed)


def first_difference(base: Fingerprint, other: Fingerprint) -> str:
    """Where two trainings differ in a bit, as half a sentence; "" where they do not."""
    num_both = min(len(base.losses), len(other.losses))
    if base.losses[:num_both] == other.losses[:num_both]:
        return _digest_difference(base, other)
    ours_by_step, others_by_step = Counter(step for step, _ in base.losses), Counter(step for step, _ in other.losses)
    last = min(max(ours_by_step, default=0), max(others_by_step, default=0))  # may still lack a loss
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


class _Hearing:
    """One candidate's case."""

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
        """Where it does not repeat the base, it shows how much the script itself strays."""
        return None if self.is_repeatable else self.control

    @cached_property
    def controls(self) -> list[Fingerprint]:
        """Right by construction: what they differ by is rounding."""
        return [one for one in (self.rounding, self.own_control) if one is not None]

    @cached_property
    def redraws(self) -> list[Fingerprint]:
        """Right by construction: what they differ by is chance."""
        return [one for one in (self.seed, self.own_control) if one is not None]

    def identical(self, difference: str) -> Numerics:
        if self.is_repeatable:
            return self.unsound(difference)
        verdict = self.close("reordered") if self.base.snapshots and self.candidate.snapshots else self.redrawn()
        reason = f"the script does not repeat itself bit for bit; beside its own twin: {verdict.reason}"
        return Numerics(self.claimed, verdict.is_sound, reason, verdict.worst_gradient, verdict.worst_loss)

    def redrawn(self) -> Numerics:
        for number, (ours, theirs) in enumerate(self.pairs):
            fault = find_stray_window(ours, theirs, _curves_of(self.redraws, number))
            if fault:
                return self.unsound(fault)
        band = "the band of another seed" if self.redraws else "what chance explains"
        return self.sound(f"the loss curve stays within {band} in {self.num_common} steps")

    def close(self, judged: NumericsClass) -> Numerics:
        """Same batches, same mathematics: gradients, buffers, losses."""
        is_approximate = judged == "approximate"
        likes = [*self.controls, *([self.coarse] if is_approximate and self.coarse is not None else [])]
        found = gradient_gaps(self.base, self.candidate, SMALL)
        if not any(gaps.tensors for gaps in found.values()):
            return Numerics(self.claimed, None, "no gradient was seen", worst_loss=self._worst_loss())
        off = worst_error(found)
        band = APPROXIMATE if is_approximate else REORDERED
        fault = self._fault(band, likes) or self._loss_fault(_LOSS_FLOORS[judged], likes)
        if not fault:
            losses = _told("losses", self._worst_loss() or 0.0)
            return self.sound(f"{_told('gradients', off)} at first, {losses} in {self.num_common} steps", off)
        is_unknown = is_approximate and self.coarse is None
        if not is_unknown or self._fault(NO_PRECISION, likes) or self._loss_fault(_NO_PRECISION_LOSS, likes):
            return self.unsound(fault, off)
        reason = f"{fault}; without the coarse twin nobody can tell whether that is its precision"
        return Numerics(self.claimed, None, reason, off, self._worst_loss())

    def _fault(self, band: Tolerance, likes: list[Fingerprint]) -> str:
        negligible = band.negligible if self.controls else SMALL
        weak = weak_gradients(self.base, self.controls) if band is not REORDERED else set()
        gradients = gradient_gaps(self.base, self.candidate, negligible, weak)
        buffers = buffer_gaps(self.base, self.candidate)
        if not likes:  # later steps stray by themselves, and nobody knows how far
            first = min(gradients)
            gradients, buffers = {first: gradients[first]}, {first: buffers[first]}
        fault = find_gradient_fault(
            band, gradients, [gradient_gaps(self.base, like, negligible, weak) for like in likes]
        )
        return fault or find_buffer_fault(band, buffers, [buffer_gaps(self.base, like) for like in likes], gradients)

    def _loss_fault(self, floors: tuple[float, float], likes: list[Fingerprint]) -> str:
        """After the gradients: what they were allowed to differ by shows in later losses too."""
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


def _told(what: str, error: float) -> str:
    return f"{what} off by at most {percent(error)}" if error else f"{what} the same"


def _curves_of(fingerprints: list[Fingerprint], number: int) -> list[Curve]:
    """Of the loss of this number in each step."""
    return [found[number] for found in map(curves, fingerprints) if number < len(found)]
