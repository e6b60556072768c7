"""Judges the trials of numerics_errors.py as tune does, and decides which planted faults are large enough to see."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from numerics_trials import FAULTS, Records, Script, Trial, control_plans
from slipstream.records import RANDOM_DRAWS, Fingerprint, Numerics, NumericsClass, Precision
from slipstream.report.text.numerics import describe_numerics
from slipstream.techniques._core.catalogue import technique
from slipstream.tuning.numerics import Claim
from slipstream.verify.numerics import Controls, first_difference, judge
from slipstream.verify.step_test import StepTest, allowance_of
from slipstream.verify.tensor_distance import Distances, distances, joined
from slipstream.verify.trajectory import (
    added_up,
    curves,
    curves_of,
    find_horizon,
    find_non_finite,
    is_divided,
    pairs_of,
)

# Trials without a planted fault that are judged by a class that they do not belong to.
COMPUTED_IN_BF16, OTHER_SEED = "computed_in_bf16", "other_seed"


class Judged(msgspec.Struct, frozen=True, omit_defaults=True):
    """One trial and its verdict."""

    what: str  # The recipe, or the fault
    claimed: NumericsClass
    is_sound: bool | None
    basis: str
    words: str = ""  # The explanation of a verdict, if the page shows one
    # The effect of a fault alone. "visible": it moves an evidential tensor or a loss farther than allowed. "below": it
    # moves them less. "nothing": it changes no bit.
    effect: str = ""
    effect_words: str = ""


class Errors(msgspec.Struct, frozen=True):
    """The error of bf16 autocast in the first step, divided by the prediction."""

    num_tensors: int
    num_evidence: int
    lowest: float
    median: float
    highest: float
    worst_tensor: str
    together: float


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    is_public: bool = False
    failure: str = ""
    num_steps: int = 0
    is_repeatable: bool = True
    horizon_fp32: int | None = None
    horizon_bf16: int | None = None
    sound: list[Judged] = []
    chance: list[Judged] = []  # Controls, each judged by the other controls
    faults: list[Judged] = []
    errors: Errors | None = None
    base_s: float = 0.0  # Time of one trial of the base
    fp32_s: float = 0.0  # Time of the controls with fp32 rounding noise
    bf16_s: float = 0.0  # Time of the controls with bf16 rounding noise
    seeds_s: float = 0.0  # Time of the controls with other seeds
    base_step_ms: float = 0.0  # Step of the unchanged script in its fastest block
    rounding_step_ms: float = 0.0  # Step of the controls with rounding noise, on average
    failed: dict[str, str] = {}  # Trials that did not run, with the reason
    unchanged: list[str] = []  # Techniques that found nothing to change


class ScriptTrials:
    """The saved trials of one script, which are judged by its controls."""

    def __init__(self, script: Script, folder: Path) -> None:
        self.records = Records(folder, script)
        self.base = self._fingerprint("base")
        repeat = self._fingerprint("repeat")
        self._repeat = repeat if repeat.losses else None
        self._draws: dict[Precision, list[Fingerprint]] = {
            "fp32": self._all("rounding-fp32-"),
            "bf16": self._all("rounding-bf16-"),
        }
        self._seeds = self._all("seed-")

    def _fingerprint(self, key: str) -> Fingerprint:
        trial = self.records.load(key)
        return trial.fingerprint if trial is not None else Fingerprint()

    def _all(self, prefix: str) -> list[Fingerprint]:
        found = [self._fingerprint(plan.key) for plan in control_plans() if plan.key.startswith(prefix)]
        return [one for one in found if one.losses and find_non_finite(self.base, one) is None]

    def controls(self, precision: Precision) -> Controls:
        return Controls(self._repeat, self._draws[precision], self._seeds)

    def judge(
        self, claimed: NumericsClass, trial: Trial, precision: Precision = "fp32", is_control: bool = False
    ) -> Numerics:
        controls = self.controls(precision)
        if is_control:
            seeds = [one for one in controls.seeds if one != trial.fingerprint]
            controls = msgspec.structs.replace(controls, seeds=seeds)
        return judge(claimed, self.base, trial.fingerprint, controls, precision)

    def chance(self) -> list[Judged]:
        """Judges each control by the other controls, as a candidate of the class that it belongs to by construction."""
        found = []
        for number, seed in enumerate(self._seeds):
            others = [one for one in self._seeds if one is not seed]
            numerics = judge("redrawn", self.base, seed, Controls(self._repeat, [], others))
            found.append(_judged(f"seed {number}", numerics))
        for number, draw in enumerate(self._draws["bf16"][:RANDOM_DRAWS]):
            others = [one for one in self._draws["bf16"] if one is not draw]
            controls = Controls(self._repeat, others, self._seeds)
            numerics = judge("approximate", self.base, draw, controls, "bf16")
            found.append(_judged(f"bf16 noise {number}", numerics))
        return found

    def step_test(self, trial: Trial, precision: Precision) -> StepTest:
        draws = self._draws[precision]
        return StepTest(self.base, trial.fingerprint, draws, allowance_of(precision, draws))

    def effect(self, trial: Trial, precision: Precision) -> tuple[str, str]:
        """The effect of the fault alone, computed in fp32, and words about it.

        The effect is "visible" if it exceeds what this precision allows (see `Judged.effect`).
        """
        base, own, draws = self.base, trial.fingerprint, self._draws[precision]
        if first_difference(base, own) is None:
            return "nothing", "no bit differs"
        if is_divided(base, own):
            base, own, draws = added_up(base), added_up(own), list(map(added_up, draws))
        if find_non_finite(base, own):
            return "visible", "a loss is not finite"
        allowance = allowance_of(precision, draws)
        test = StepTest(base, own, draws, allowance)
        if test.fault is not None:
            fault = test.fault
            where = f"{fault.tensor} of {fault.name or 'all'}, step {fault.step}"
            return "visible", f"{where}: {fault.seen:.3g}, allowed {fault.allowed:.3g}"
        ends = []
        for key, (ours, theirs) in pairs_of(base, own).items():
            horizon = find_horizon(ours, curves_of(draws, key), allowance.times)
            ends.append(horizon.num_steps)
            losses = horizon.find_fault(ours, theirs)
            if losses is not None:
                where = f"losses of steps {losses.step} to {losses.last_step}"
                return "visible", f"{where}: {losses.seen:.3g}, allowed {losses.allowed:.3g}"
        if not test.evidence:
            return "below", "no tensor is evidence"
        worst = f"the largest error of a gradient is {test.worst_gradient:.2g}, and losses are as rounding leaves them"
        return "below", f"{worst} up to the horizon (step {min(ends, default=0)})"

    def horizon(self, precision: Precision) -> int | None:
        draws = self._draws[precision]
        times = allowance_of(precision, draws).times
        ends = [find_horizon(ours, curves_of(draws, key), times).num_steps for key, ours in curves(self.base).items()]
        return min(ends, default=None)

    def errors(self, trial: Trial) -> Errors | None:
        draws = self._draws["bf16"]
        found = distances("gradient", self.base, trial.fingerprint)
        if not found or not draws:
            return None
        step = min(found)
        predicted = [one[step] for one in (distances("gradient", self.base, draw) for draw in draws) if step in one]
        evidence = self.step_test(trial, "bf16").evidence
        ratios = _ratios(found[step], predicted, evidence)
        if not ratios:
            return None
        ordered = sorted(ratios.values())
        whole = joined(found[step], ratios)
        together = max(joined(draw, ratios).error for draw in predicted)
        with_gradient = [one for one in found[step].values() if one.base_norm]
        return Errors(
            len(with_gradient),
            len(ratios),
            ordered[0],
            ordered[len(ordered) // 2],
            ordered[-1],
            max(ratios, key=lambda name: ratios[name]),
            whole.error / together if together else 0.0,
        )


def _ratios(found: Distances, predicted: list[Distances], evidence: set[str]) -> dict[str, float]:
    ratios = {}
    for name in evidence & found.keys():
        highest = max((draw[name].error for draw in predicted if name in draw), default=0.0)
        if highest and not found[name].trouble:
            ratios[name] = found[name].error / highest
    return ratios


def row_of(script: Script, folder: Path) -> Row:
    """The row of a script, from the trials that are saved so far."""
    trials = ScriptTrials(script, folder)
    offer = trials.records.offer()
    if offer is None or offer.failure or not trials.base.losses:
        base = trials.records.load("base")
        return Row(script.name, script.is_public, (offer.failure if offer else "") or (base.failure if base else "?"))
    if any(trials.records.load(plan.key) is None for plan in control_plans()):
        return Row(script.name, script.is_public, "interrupted: not all controls have run")
    failed: dict[str, str] = {}
    unchanged: list[str] = []
    sound = []
    for name, setting in offer.settings.items():
        trial = trials.records.load(f"{name}={setting}")
        if trial is None:
            continue
        if not trial.fingerprint.losses:
            failed[name] = trial.failure
        elif not trial.changes:
            unchanged.append(name)
        else:
            sound.append(_sound(trials, name, setting, trial))
    faults: list[Judged] = []
    for fault in FAULTS:
        plain = trials.records.load(f"fault-{fault}")
        if plain is None or not any(change.startswith("planted:") for change in plain.changes):
            continue
        if not plain.fingerprint.losses:
            failed[fault] = plain.failure
            continue
        faults += [_fault(trials, fault, claimed, plain, plain) for claimed in ("reordered", "identical")]
        if fault == "fp16_unscaled":  # This fault is itself a lower precision.
            faults.append(_fault(trials, fault, "approximate", plain, plain))
        in_bf16 = trials.records.load(f"fault-bf16-{fault}")
        if in_bf16 is not None and in_bf16.fingerprint.losses:
            faults.append(_fault(trials, fault, "approximate", plain, in_bf16))
    bf16, other = trials.records.load("mixed_precision=bf16"), trials.records.load("seed-0")
    if bf16 is not None and bf16.changes:  # For the other classes, lower precision is a fault.
        faults += [_fault(trials, COMPUTED_IN_BF16, claimed, bf16, bf16) for claimed in ("reordered", "identical")]
    if other is not None and other.fingerprint.losses:
        for claimed in ("reordered", "approximate", "identical"):
            faults.append(_fault(trials, OTHER_SEED, claimed, other, other, is_control=True))
    spent = {plan.key: trials.records.load(plan.key) for plan in control_plans()}
    seconds = {key: trial.seconds for key, trial in spent.items() if trial is not None}
    steps = {key: trial.step_s for key, trial in spent.items() if trial is not None and trial.step_s}
    controls = trials.controls("fp32")
    return Row(
        script.name,
        script.is_public,
        num_steps=1 + max(step for step, _ in trials.base.losses),
        is_repeatable=controls.repeat is None or first_difference(trials.base, controls.repeat) is None,
        horizon_fp32=trials.horizon("fp32"),
        horizon_bf16=trials.horizon("bf16"),
        sound=sound,
        chance=trials.chance(),
        faults=faults,
        errors=trials.errors(bf16) if bf16 is not None and bf16.changes else None,
        base_s=seconds.get("base", 0.0),
        fp32_s=_sum(seconds, "rounding-fp32"),
        bf16_s=_sum(seconds, "rounding-bf16"),
        seeds_s=_sum(seconds, "seed"),
        base_step_ms=1e3 * min((steps[key] for key in ("base", "repeat") if key in steps), default=0.0),
        rounding_step_ms=1e3 * fmean([step for key, step in steps.items() if key.startswith("rounding")] or [0.0]),
        failed=failed,
        unchanged=unchanged,
    )


def _sum(seconds: dict[str, float], prefix: str) -> float:
    return sum(value for key, value in seconds.items() if key.startswith(prefix))


def _sound(trials: ScriptTrials, name: str, setting: Any, trial: Trial) -> Judged:
    card = technique(name).CARD
    precision: Precision = "fp32"
    if card.numerics == "approximate":
        precision = card.precision or setting
    claim = Claim(card.numerics, precision, card.numerics == "redrawn", card.needs_proof)
    numerics = trials.judge(claim.judged_as(is_timed=False), trial, precision)
    return msgspec.structs.replace(_judged(f"{name}={setting}", numerics), claimed=claim.numerics)


def _judged(what: str, numerics: Numerics) -> Judged:
    words = "" if numerics.is_sound else describe_numerics(numerics)
    return Judged(what, numerics.claimed, numerics.is_sound, numerics.basis, words)


def _fault(
    trials: ScriptTrials, fault: str, claimed: NumericsClass, plain: Trial, seen: Trial, is_control: bool = False
) -> Judged:
    """Judges a fault. `plain` has only the fault, and `seen` also has the claimed precision. With `is_control` the
    trial is one of the controls, and is not used to judge itself."""
    precision: Precision = "bf16" if claimed == "approximate" else "fp32"
    numerics = trials.judge(claimed, seen, precision, is_control)
    effect, words = trials.effect(plain, precision)
    if numerics.is_sound is False:
        return Judged(fault, claimed, False, numerics.basis, effect=effect)
    return Judged(fault, claimed, numerics.is_sound, numerics.basis, describe_numerics(numerics), effect, words)
