"""Decides whether a candidate trains like the base, from the fingerprints of their trials and of controls. The module
handles no tensors and no techniques. docs/numerics.md explains the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from slipstream.records import (
    RANDOM_DRAWS,
    Fingerprint,
    Numerics,
    NumericsBasis,
    NumericsClass,
    NumericsFault,
    Precision,
)
from slipstream.verify.step_test import StepTest, allowance_of
from slipstream.verify.trajectory import (
    LEVEL_WINDOWS,
    MIN_REFERENCES,
    WINDOW_STEPS,
    CurveKey,
    LossWindow,
    added_up,
    common_steps,
    curves_of,
    find_horizon,
    find_level_fault,
    find_metric_fault,
    find_non_finite,
    is_divided,
    level_windows,
    pairs_of,
    worst_loss,
)

MIN_SEEDS = MIN_REFERENCES - 1  # controls with another seed; the base is the third training


class Controls(msgspec.Struct, frozen=True):
    """Fingerprints of trials that are correct by construction. `repeat` is another trial of the base. `rounding`
    contains draws of the noise of the claimed precision, and `seeds` contains trainings with other seeds."""

    repeat: Fingerprint | None = None
    rounding: Sequence[Fingerprint] = ()
    seeds: Sequence[Fingerprint] = ()


NO_CONTROLS = Controls()


def judge(
    claimed: NumericsClass,
    base: Fingerprint,
    candidate: Fingerprint,
    controls: Controls = NO_CONTROLS,
    precision: Precision = "fp32",
) -> Numerics:
    """Compares the candidate's numerics with the base's numerics. `is_sound` of the result is None if the records do
    not suffice for a decision. `basis` then says what is missing. `precision` is the precision that an `approximate`
    recipe names."""
    # With accumulation, the losses of the pieces of a batch add up to the loss of the batch.
    if claimed != "identical" and is_divided(base, candidate):
        base, candidate = added_up(base), added_up(candidate)
        repeat = added_up(controls.repeat) if controls.repeat is not None else None
        controls = Controls(repeat, list(map(added_up, controls.rounding)), list(map(added_up, controls.seeds)))
    return _CandidateCheck(claimed, base, candidate, controls, precision).result()


class _CandidateCheck:
    """Compares one candidate with the base and the controls."""

    def __init__(
        self,
        claimed: NumericsClass,
        base: Fingerprint,
        candidate: Fingerprint,
        controls: Controls,
        precision: Precision,
    ) -> None:
        self._claimed = claimed
        self._base = base
        self._candidate = candidate
        self._controls = controls
        self._precision: Precision = precision if claimed == "approximate" else "fp32"
        self._pairs = pairs_of(base, candidate)
        ours, theirs = ({step for step, _ in one.losses} for one in (base, candidate))
        self._num_steps = len(ours & theirs)

    def result(self) -> Numerics:
        if self._num_steps == 0:
            is_seen = bool(self._candidate.losses and self._base.losses)
            return self._undecided("no_common_step" if is_seen else "no_loss")
        if fault := find_non_finite(self._base, self._candidate):
            return self._decided("finite", fault)
        if self._claimed == "different":
            return self._decided("finite")
        difference = first_difference(self._base, self._candidate)
        if difference is None:
            return self._decided("bits")
        if self._claimed == "identical" and self._is_repeatable:
            return self._decided("bits", difference)
        if not self._pairs:  # no step has the same number of losses in both
            return self._decided("finite", difference)
        if self._claimed == "redrawn":
            return self._by_curve()
        return self._by_tensors()

    @cached_property
    def _is_repeatable(self) -> bool:
        repeat = self._controls.repeat
        return repeat is None or first_difference(self._base, repeat) is None

    @property
    def _own_spread(self) -> list[Fingerprint]:
        """The repetition of the base if it differs from the base, which means that the script itself varies."""
        repeat = self._controls.repeat
        return [] if repeat is None or self._is_repeatable else [repeat]

    def _is_draw(self, control: Fingerprint) -> bool:
        """Whether a rounding control shows the effect of rounding. A control that equals the base had no noise, because
        its model could not be reached. A control with a loss that is not finite has failed, if the base's loss is
        finite."""
        is_noisy = first_difference(self._base, control) is not None
        return is_noisy and find_non_finite(self._base, control) is None

    def _by_curve(self) -> Numerics:
        """Judges a candidate that drew other random numbers, by the level of its losses."""
        references = [*self._controls.seeds, *self._own_spread]
        if len(references) < MIN_SEEDS:
            return self._undecided("no_seeds")
        if max(len(common_steps(*pair)) for pair in self._pairs.values()) < WINDOW_STEPS:
            return self._undecided("no_common_step")
        fault = self._find_level_fault(references, {})
        fault = fault or find_metric_fault(self._base, self._candidate, self._controls.repeat, references)
        return self._decided("curve", fault)

    def _by_tensors(self) -> Numerics:
        """Judges a candidate with the same batches and the same mathematics by gradients, updates, buffers and
        losses."""
        draws = [*filter(self._is_draw, self._controls.rounding), *self._own_spread]
        if not self._base.snapshots or not self._candidate.snapshots:
            return self._undecided("no_gradient")
        if len(draws) < RANDOM_DRAWS:  # fewer draws do not show the effect of chance
            return self._undecided("no_control")
        allowance = allowance_of(self._precision, self._controls.rounding)
        step_test = StepTest(self._base, self._candidate, draws, allowance)
        facts = {
            "worst_gradient": step_test.worst_gradient,
            "num_tensors": len(step_test.tensors),
            "num_evidence": len(step_test.evidence),
        }
        if not step_test.tensors:
            return self._undecided("no_gradient")
        if step_test.fault:
            return self._decided("tensors", step_test.fault, **facts)
        if step_test.unpredicted:
            return self._undecided("no_control", **facts)
        if not step_test.has_enough_evidence():
            return self._undecided("little_evidence", **facts)
        ends: dict[CurveKey, int] = {}
        fault = None
        for key, (ours, theirs) in self._pairs.items():
            horizon = find_horizon(ours, curves_of(draws, key), allowance.times)
            fault = fault or horizon.find_fault(ours, theirs)
            ends[key] = horizon.num_steps
        references = [*draws, *self._controls.seeds]
        fault = fault or self._find_level_fault(references, ends)
        fault = fault or find_metric_fault(self._base, self._candidate, self._controls.repeat, references)
        early = [end for key, end in ends.items() if end <= max(common_steps(*self._pairs[key]), default=-1)]
        return self._decided("tensors", fault, horizon_steps=min(early, default=None), **facts)

    def _find_level_fault(
        self, references: Sequence[Fingerprint], starts: Mapping[CurveKey, int]
    ) -> NumericsFault | None:
        for key, (ours, theirs) in self._pairs.items():
            windows = level_windows(ours, theirs, curves_of(references, key), starts.get(key, 0))
            if fault := find_level_fault(windows):
                return fault
        return None

    def _undecided(self, basis: NumericsBasis, **facts: float) -> Numerics:
        return self._numerics(None, basis, None, facts)

    def _decided(self, basis: NumericsBasis, fault: NumericsFault | None = None, **facts: float | None) -> Numerics:
        return self._numerics(fault is None, basis, fault, facts)

    def _numerics(
        self,
        is_sound: bool | None,
        basis: NumericsBasis,
        fault: NumericsFault | None,
        facts: Mapping[str, float | None],
    ) -> Numerics:
        return Numerics(
            self._claimed,
            is_sound,
            worst_loss=max((worst_loss(*pair) or 0.0 for pair in self._pairs.values()), default=None),
            basis=basis,
            precision=self._precision,
            num_steps=self._num_steps,
            is_repeatable=self._is_repeatable,
            fault=fault,
            **facts,  # type: ignore[arg-type]
        )


def loss_windows(
    base: Fingerprint, candidate: Fingerprint, controls: Controls, numerics: Numerics, key: CurveKey
) -> list[LossWindow]:
    """Returns the windows in which one loss of a step was compared, for display. Up to the horizon, losses were
    compared step by step. From there on, their levels were compared. Windows of the same kind may be joined."""
    ours, theirs = pairs_of(base, candidate)[key]
    draws = curves_of(controls.rounding, key)
    times = allowance_of(numerics.precision, controls.rounding).times
    horizon = find_horizon(ours, draws if numerics.basis == "tensors" else [], times)
    references = [*draws, *curves_of(controls.seeds, key)]
    return [
        *horizon.loss_windows(ours, theirs, LEVEL_WINDOWS),
        *level_windows(ours, theirs, references, horizon.num_steps),
    ]


def first_difference(base: Fingerprint, other: Fingerprint) -> NumericsFault | None:
    """Returns the first difference between two trainings, or None if everything that both recorded agrees in every
    bit."""
    num_both = min(len(base.losses), len(other.losses))
    if base.losses[:num_both] == other.losses[:num_both]:
        return _digest_difference(base, other)
    ours_by_step, others_by_step = Counter(step for step, _ in base.losses), Counter(step for step, _ in other.losses)
    last = min(max(ours_by_step, default=0), max(others_by_step, default=0))  # this step may still lack a loss
    for step in sorted(ours_by_step):
        ours, theirs = ours_by_step[step], others_by_step[step]
        if step < last and theirs != ours:
            return NumericsFault("passes", step=step, seen=theirs, allowed=ours)
    for our_curve, their_curve in pairs_of(base, other).values():
        for step in common_steps(our_curve, their_curve):
            if our_curve[step] != their_curve[step]:
                return NumericsFault("loss", step=step, seen=their_curve[step], allowed=our_curve[step])
    return _digest_difference(base, other)


def _digest_difference(base: Fingerprint, other: Fingerprint) -> NumericsFault | None:
    theirs = dict(other.digests)
    for step, digest in base.digests:
        if theirs.get(step, digest) != digest:
            return NumericsFault("weights", step=step)
    return None
