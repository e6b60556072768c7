"""Numerics of a recipe: its rider's witness against the base's, with the bands that twins draw. Twins and proofs ride
only when a verdict depends on them, are not timed, and leave at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec

from slipstream.records import Fingerprint, Numerics, NumericsClass, Recipe, Role, TrialRecord
from slipstream.tuning.block_length import typical_step_s
from slipstream.tuning.budget import Budget
from slipstream.tuning.trials import RecipeTrials, TrialPool
from slipstream.verify.numerics import judge

RIDE_SHARE = 0.05  # of the budget: the most that one untimed rider may ride
MIN_CURVE = 40  # steps, where the time allows: shorter curves say little
TIMING_S = 2.0
COARSE_STEPS = 5  # its gradients of the first steps are all that is asked of it
_BANDS: tuple[Role, ...] = ("rounding", "seed", "coarse")


class Claim(msgspec.Struct, frozen=True):
    """What a recipe says of its numerics. Its class is that of its loosest technique; but what redraws random numbers
    can be held against the base by its curve alone, whatever else is on."""

    numerics: NumericsClass
    is_redrawn: bool = False
    needs_proof: bool = False  # timed with random numbers of its own, proved with the base's

    def judged_as(self, is_timed: bool = True) -> NumericsClass:
        by_curve = self.is_redrawn or (self.needs_proof and is_timed)
        return "redrawn" if by_curve and self.numerics != "different" else self.numerics


class NumericsCheck:
    def __init__(self, pool: TrialPool, budget: Budget, base: RecipeTrials) -> None:
        self._pool = pool
        self._budget = budget
        self.bases = [base]  # several starts of one script, with one seed: they all do the same
        self._bands: dict[Role, Fingerprint | None] = {}
        self.control: RecipeTrials | None = None  # of the control, once it has ridden

    @property
    def _base(self) -> RecipeTrials:
        return max(self.bases, key=lambda trials: trials.num_steps)

    def glance(self, claim: Claim, record: TrialRecord) -> Numerics:
        """At a timed rider, with what is known already: for verdicts that do not depend on it."""
        claimed = claim.judged_as(is_timed=self.needs_proof(claim, record))
        return self._named(claim, self._judge(claimed, record.fingerprint))

    def needs_proof(self, claim: Claim, record: TrialRecord) -> bool:
        """Not where the timed rider itself passes for one with the base's random numbers: the model draws none."""
        return claim.needs_proof and not self._judge(claim.judged_as(is_timed=False), record.fingerprint).is_sound

    def has_proved(self, recipe: Recipe) -> bool:
        return bool(self._pool.trials("proof", recipe).past)

    def hear(self, claim: Claim, record: TrialRecord, num_steps: int, is_last: bool = False) -> Numerics:
        """The same with all the twins that it takes to keep a recipe. `is_last`: nobody else will be heard."""
        if self._base.num_steps < min(MIN_CURVE, num_steps):  # a resumed tuning on top of what an earlier one kept
            self._ride(self._base, MIN_CURVE)
        # Whose every bit is the base's needs no band.
        if not self._judge("identical", record.fingerprint).is_sound:
            num_wanted = max(MIN_CURVE, num_steps) * (1 if is_last else 2)  # others may ride longer than this one did
            wanted: dict[Role, int] = {"rounding": num_wanted, "seed": num_wanted}
            if claim.numerics == "approximate":
                wanted["coarse"] = COARSE_STEPS
            self._draw({role: number for role, number in wanted.items() if role not in self._bands})
        return self.glance(claim, record)

    def num_rides(self, claim: Claim) -> int:
        """Of twins, that a hearing will still ask for. Whose every bit is the base's needs none."""
        if claim.numerics == "identical":
            return 0
        wanted = _BANDS if claim.numerics == "approximate" else ("rounding", "seed")
        return sum(role not in self._bands for role in wanted)

    def prove(self, claim: Claim, recipe: Recipe, num_steps: int) -> Numerics:
        """By a rider that draws the base's random numbers."""
        proof = self._ride(self._pool.trials("proof", recipe), max(MIN_CURVE, num_steps))
        if proof is None or not proof.losses:
            return Numerics(claim.numerics, None, "the rider that was to prove it did not get there")
        return self._named(claim, self._judge(claim.judged_as(is_timed=False), proof))

    def _named(self, claim: Claim, numerics: Numerics) -> Numerics:
        return msgspec.structs.replace(numerics, claimed=claim.numerics)

    def _judge(self, claimed: NumericsClass, candidate: Fingerprint) -> Numerics:
        base = self._pool.record(self._base).fingerprint
        control = self._pool.record(self.control).fingerprint if self.control is not None else Fingerprint()
        rounding, seed, coarse = (self._bands.get(role) for role in _BANDS)
        return judge(claimed, base, candidate, control if control.losses else None, rounding, seed, coarse)

    def _draw(self, wanted: Mapping[Role, int]) -> None:
        """Two start side by side, before either rides: whoever rides has the track to itself."""
        all_trials = {role: self._pool.trials(role, Recipe()) for role in wanted}
        together = list(all_trials.values())[:2] if not self._pool.is_relaunching() else []
        for trials, following in itertools.zip_longest(together, together[1:]):
            self._pool.expect(following)
            self._pool.enter(trials)  # should it fail, it is tried once more when it is to ride
        for role, trials in all_trials.items():
            self._bands[role] = self._ride(trials, wanted[role])

    def _ride(self, trials: RecipeTrials, num_steps: int) -> Fingerprint | None:
        """Rides so many steps or until its share of the time is used up; None if it could not start."""
        if self._pool.enter(trials):
            return None
        deadline_s = self._budget.now_s() + RIDE_SHARE * self._budget.budget_s
        step_s = typical_step_s(self._base.timings) or 0.1
        block = max(1, min(num_steps, round(TIMING_S / step_s)))
        while trials.num_steps < num_steps and self._budget.now_s() < deadline_s:
            timing = self._pool.run_block(trials, -1, block, 1)
            if timing.failure or timing.is_last:
                break
        record = self._pool.record(trials)
        self._pool.leave(trials)
        return record.fingerprint
