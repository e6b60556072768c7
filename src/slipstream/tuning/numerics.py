"""Checks the numerics of a recipe. The check compares the fingerprint of the recipe's trial with the fingerprints of
the base and of controls. The controls show how rounding and chance affect this training. Controls and trials of a
numerics proof run only if a verdict depends on them. Their step times are not used. They end when they have run their
steps or when their share of the budget is used up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from slipstream.records import (
    RANDOM_DRAWS,
    Fingerprint,
    Numerics,
    NumericsClass,
    Precision,
    Recipe,
    TrialRecord,
)
from slipstream.tuning.block_length import typical_step_s
from slipstream.tuning.budget import Budget, Costs
from slipstream.tuning.trials import RecipeTrials, TrialPool
from slipstream.verify.numerics import Controls, judge

CONTROL_SHARE = 0.1  # all controls may take this share of the budget, beyond the first block of each
PROOF_SHARE = 0.05  # the trial of a numerics proof may take this share of the budget
MIN_CURVE = 40  # steps, if there is time; shorter loss curves show little
TIMING_S = 0.5  # seconds of a control's block; every control that starts runs one block, even if no time is left
NUM_SEEDS = 3  # controls with other seeds
MOST_CONTROLS = RANDOM_DRAWS + 1 + NUM_SEEDS  # controls of a recipe in lower precision


class Claim(msgspec.Struct, frozen=True):
    """The numerics that a recipe claims. The numerics class of a recipe is the class of its loosest technique. A recipe
    that redraws random numbers can only be compared with the base by its loss curve, whatever its other techniques
    are."""

    numerics: NumericsClass
    precision: Precision = "fp32"  # the precision in which an approximate recipe computes
    is_redrawn: bool = False
    # The timed trial draws its own random numbers, so the recipe needs another trial with the base's random numbers.
    needs_proof: bool = False

    def judged_as(self, is_timed: bool = True) -> NumericsClass:
        by_curve = self.is_redrawn or (self.needs_proof and is_timed)
        return "redrawn" if by_curve and self.numerics != "different" else self.numerics


class NumericsCheck:
    """Checks fingerprints, and runs the controls and the trials of numerics proofs that the checks need."""

    def __init__(self, pool: TrialPool, budget: Budget, costs: Costs, base: RecipeTrials) -> None:
        self._pool = pool
        self._budget = budget
        self._costs = costs
        self.bases = [base]  # trials of the unchanged script with the same seed; all compute the same values
        self._rounding: dict[Precision, list[RecipeTrials]] = {}
        self._seeds: list[RecipeTrials] = []
        self._spent_s = 0.0  # seconds that controls have taken
        self.control: RecipeTrials | None = None  # the A/A control, once it has run

    @property
    def _base(self) -> RecipeTrials:
        return max(self.bases, key=lambda trials: trials.num_steps)

    def quick_check(self, claim: Claim, record: TrialRecord) -> Numerics:
        """Checks a timed trial with the controls that have already run. Starts no trial."""
        claimed = claim.judged_as(is_timed=self.needs_proof(claim, record))
        return self._judge(claim, claimed, record.fingerprint)

    def needs_proof(self, claim: Claim, record: TrialRecord) -> bool:
        """Whether the recipe needs another trial with the base's random numbers. The recipe does not need one if the
        timed trial passes a direct comparison with the base, as with a model that draws no random numbers."""
        is_sound = self._judge(claim, claim.judged_as(is_timed=False), record.fingerprint).is_sound
        return claim.needs_proof and not is_sound

    def full_check(self, claim: Claim, record: TrialRecord, num_steps: int, deadline_s: float) -> Numerics:
        """Checks a timed trial with all controls that are needed to keep its recipe. Controls that would end after the
        deadline do not start."""
        if self._base.num_steps < min(MIN_CURVE, num_steps):  # in a resumed tuning the base may not have run yet
            self._run(self._base, MIN_CURVE, PROOF_SHARE * self._budget.budget_s)
        num_wanted = 2 * max(MIN_CURVE, num_steps)  # later trials may run longer than this one
        if claim.needs_proof:  # a model that draws no random numbers may pass a direct comparison with the base
            own = claim.judged_as(is_timed=False)
            numerics = self._checked(claim, num_wanted, deadline_s, lambda: self._judge(claim, own, record.fingerprint))
            if numerics.is_sound:
                return numerics
        return self._checked(claim, num_wanted, deadline_s, lambda: self.quick_check(claim, record))

    def prove(self, claim: Claim, recipe: Recipe, num_steps: int, deadline_s: float) -> Numerics:
        """Checks the recipe in a separate trial with the base's random numbers."""
        if not self._is_time(1, deadline_s):
            return Numerics(claim.numerics, None, basis="no_time")
        trials, num_wanted = self._pool.trials("proof", recipe), max(MIN_CURVE, num_steps)
        self._run(trials, num_wanted, PROOF_SHARE * self._budget.budget_s)
        proof = self._pool.record(trials).fingerprint
        if not proof.losses:
            return Numerics(claim.numerics, None, basis="no_proof")
        claimed = claim.judged_as(is_timed=False)
        return self._checked(claim, num_wanted, deadline_s, lambda: self._judge(claim, claimed, proof))

    def controls_s(self, claim: Claim) -> float:
        """Returns the duration of the controls that this claim may need and that have not run yet."""
        number = 0 if self._seeds else NUM_SEEDS
        if claim.precision not in self._rounding:
            number += _num_draws(claim)
        return number * self._costs.control_s() if claim.numerics != "identical" else 0.0

    def _is_time(self, num_controls: int, deadline_s: float) -> bool:
        return self._budget.now_s() + num_controls * self._costs.control_s() <= deadline_s

    def _checked(self, claim: Claim, num_steps: int, deadline_s: float, check: Callable[[], Numerics]) -> Numerics:
        """Returns the result of `check`. If `check` needs further controls, the controls run first. Without time for
        them the result has the basis "no_time"."""
        numerics = check()
        if numerics.basis == "no_control" and claim.precision not in self._rounding:
            num_draws = _num_draws(claim)
            if not self._is_time(num_draws, deadline_s):
                return msgspec.structs.replace(numerics, is_sound=None, basis="no_time")
            draws = [RecipeTrials("rounding", Recipe(), claim.precision, draw) for draw in range(num_draws)]
            self._rounding[claim.precision] = draws
            self._run_controls(draws, num_steps)
            numerics = check()
        needs_seeds = numerics.basis == "no_seeds" or (numerics.is_sound and numerics.horizon_steps is not None)
        if needs_seeds and not self._seeds:
            if not self._is_time(NUM_SEEDS, deadline_s):
                return msgspec.structs.replace(numerics, is_sound=None, basis="no_time")
            self._seeds = [RecipeTrials("seed", Recipe(), draw=draw) for draw in range(NUM_SEEDS)]
            self._run_controls(self._seeds, num_steps)
            numerics = check()
        return numerics

    def _judge(self, claim: Claim, claimed: NumericsClass, candidate: Fingerprint) -> Numerics:
        base = self._pool.record(self._base).fingerprint
        repeat = self._fingerprints([self.control] if self.control is not None else [])
        controls = Controls(
            repeat[0] if repeat else None,
            self._fingerprints(self._rounding.get(claim.precision, [])),
            self._fingerprints(self._seeds),
        )
        numerics = judge(claimed, base, candidate, controls, claim.precision)
        return msgspec.structs.replace(numerics, claimed=claim.numerics)

    def _fingerprints(self, all_trials: Sequence[RecipeTrials]) -> list[Fingerprint]:
        found = [self._pool.record(trials).fingerprint for trials in all_trials]
        return [one for one in found if one.losses]

    def _run_controls(self, all_trials: Sequence[RecipeTrials], num_steps: int) -> None:
        """Runs controls for `num_steps`, or until the time for controls is used up. Each control runs at least one
        block. If memory allows, two controls start at the same time. Then they run their steps one after the other."""
        begun_s = self._budget.now_s()
        size = 1 if self._pool.is_relaunching() else 2
        for at in range(0, len(all_trials), size):
            together = all_trials[at : at + size]
            for trials, following in itertools.zip_longest(together, together[1:]):
                self._pool.expect(following)
                self._pool.enter(trials)  # a failure is ignored here, because `_run` starts the trial again
            for number, trials in enumerate(together):
                left_s = CONTROL_SHARE * self._budget.budget_s - self._spent_s - (self._budget.now_s() - begun_s)
                self._run(trials, num_steps, left_s / (len(all_trials) - at - number))
        self._spent_s += self._budget.now_s() - begun_s

    def _run(self, trials: RecipeTrials, num_steps: int, seconds: float) -> None:
        """Runs a trial for `num_steps`, or until the seconds are used up. It runs at least one block."""
        deadline_s = self._budget.now_s() + seconds
        if self._pool.enter(trials):
            return
        step_s = typical_step_s(self._base.timings) or 0.1
        block = max(1, min(num_steps, round(TIMING_S / step_s)))
        while trials.num_steps < num_steps:
            timing = self._pool.run_block(trials, -1, block, 1)
            if timing.failure or timing.is_last or self._budget.now_s() >= deadline_s:
                break
        self._pool.leave(trials)


def _num_draws(claim: Claim) -> int:
    """Returns the number of rounding controls. Lower precision needs one more control, whose rounding is not random."""
    return RANDOM_DRAWS + (claim.precision != "fp32")
