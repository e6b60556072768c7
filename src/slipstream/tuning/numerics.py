"""Checks the numerics of a recipe: compares the fingerprint of its trial with the base's, with tolerances from
controls. Controls and proofs run only if a verdict depends on them. They are not timed, and end immediately
afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec

from slipstream.records import Fingerprint, Numerics, NumericsClass, Recipe, Role, TrialRecord
from slipstream.tuning.block_length import typical_step_s
from slipstream.tuning.budget import Budget
from slipstream.tuning.trials import RecipeTrials, TrialPool
from slipstream.verify.numerics import judge

CONTROL_SHARE = 0.05  # of the budget: the most that one untimed trial may take
MIN_CURVE = 40  # steps, if there is time: shorter loss curves show little
TIMING_S = 2.0
COARSE_STEPS = 5  # only the gradients of its first steps are needed
_BANDS: tuple[Role, ...] = ("rounding", "seed", "coarse")


class Claim(msgspec.Struct, frozen=True):
    """The numerics that a recipe claims. Its class is that of its loosest technique. A recipe that redraws random
    numbers can only be compared with the base by its loss curve, whatever its other techniques are."""

    numerics: NumericsClass
    is_redrawn: bool = False
    needs_proof: bool = False  # timed with its own random numbers, proved with the base's

    def judged_as(self, is_timed: bool = True) -> NumericsClass:
        by_curve = self.is_redrawn or (self.needs_proof and is_timed)
        return "redrawn" if by_curve and self.numerics != "different" else self.numerics


class NumericsCheck:
    """Checks fingerprints, and runs the controls and proofs that this needs."""

    def __init__(self, pool: TrialPool, budget: Budget, base: RecipeTrials) -> None:
        self._pool = pool
        self._budget = budget
        self.bases = [base]  # several starts of the same script with the same seed, which compute the same
        self._bands: dict[Role, Fingerprint | None] = {}
        self.control: RecipeTrials | None = None  # the A/A control, once it has run

    @property
    def _base(self) -> RecipeTrials:
        return max(self.bases, key=lambda trials: trials.num_steps)

    def quick_check(self, claim: Claim, record: TrialRecord) -> Numerics:
        """Checks a timed trial with the controls that have already run. For verdicts that do not depend on the
        result."""
        claimed = claim.judged_as(is_timed=self.needs_proof(claim, record))
        return self._named(claim, self._judge(claimed, record.fingerprint))

    def needs_proof(self, claim: Claim, record: TrialRecord) -> bool:
        """Whether a separate proof is needed. It is not if the timed trial itself passes with the base's random
        numbers, as it does for a model that draws none."""
        return claim.needs_proof and not self._judge(claim.judged_as(is_timed=False), record.fingerprint).is_sound

    def has_proved(self, recipe: Recipe) -> bool:
        return bool(self._pool.trials("proof", recipe).past)

    def full_check(self, claim: Claim, record: TrialRecord, num_steps: int, is_last: bool = False) -> Numerics:
        """Checks a timed trial with all controls that are needed to keep a recipe. `is_last`: no further check
        follows."""
        if self._base.num_steps < min(MIN_CURVE, num_steps):  # in a resumed tuning the base may not have run yet
            self._run(self._base, MIN_CURVE)
        # A trial that equals the base bit for bit needs no tolerances.
        if not self._judge("identical", record.fingerprint).is_sound:
            num_wanted = max(MIN_CURVE, num_steps) * (1 if is_last else 2)  # later trials may run longer than this one
            wanted: dict[Role, int] = {"rounding": num_wanted, "seed": num_wanted}
            if claim.numerics == "approximate":
                wanted["coarse"] = COARSE_STEPS
            self._run_controls({role: number for role, number in wanted.items() if role not in self._bands})
        return self.quick_check(claim, record)

    def num_control_runs(self, claim: Claim) -> int:
        """How many controls a full check still has to run. A trial that equals the base bit for bit needs none."""
        if claim.numerics == "identical":
            return 0
        wanted = _BANDS if claim.numerics == "approximate" else ("rounding", "seed")
        return sum(role not in self._bands for role in wanted)

    def prove(self, claim: Claim, recipe: Recipe, num_steps: int) -> Numerics:
        """Checks the recipe in a separate trial with the base's random numbers."""
        proof = self._run(self._pool.trials("proof", recipe), max(MIN_CURVE, num_steps))
        if proof is None or not proof.losses:
            return Numerics(claim.numerics, None, "the trial that was to prove it did not reach a step")
        return self._named(claim, self._judge(claim.judged_as(is_timed=False), proof))

    def _named(self, claim: Claim, numerics: Numerics) -> Numerics:
        return msgspec.structs.replace(numerics, claimed=claim.numerics)

    def _judge(self, claimed: NumericsClass, candidate: Fingerprint) -> Numerics:
        base = self._pool.record(self._base).fingerprint
        control = self._pool.record(self.control).fingerprint if self.control is not None else Fingerprint()
        rounding, seed, coarse = (self._bands.get(role) for role in _BANDS)
        return judge(claimed, base, candidate, control if control.losses else None, rounding, seed, coarse)

    def _run_controls(self, wanted: Mapping[Role, int]) -> None:
        """Runs controls. The first two start at the same time, before either runs steps: only one trial runs at a
        time."""
        all_trials = {role: self._pool.trials(role, Recipe()) for role in wanted}
        together = list(all_trials.values())[:2] if not self._pool.is_relaunching() else []
        for trials, following in itertools.zip_longest(together, together[1:]):
            self._pool.expect(following)
            self._pool.enter(trials)  # a failure is ignored here: it is started again for its run
        for role, trials in all_trials.items():
            self._bands[role] = self._run(trials, wanted[role])

    def _run(self, trials: RecipeTrials, num_steps: int) -> Fingerprint | None:
        """Runs a trial for `num_steps`, or until its share of the time is used up. None if it could not start."""
        if self._pool.enter(trials):
            return None
        deadline_s = self._budget.now_s() + CONTROL_SHARE * self._budget.budget_s
        step_s = typical_step_s(self._base.timings) or 0.1
        block = max(1, min(num_steps, round(TIMING_S / step_s)))
        while trials.num_steps < num_steps and self._budget.now_s() < deadline_s:
            timing = self._pool.run_block(trials, -1, block, 1)
            if timing.failure or timing.is_last:
                break
        record = self._pool.record(trials)
        self._pool.leave(trials)
        return record.fingerprint
