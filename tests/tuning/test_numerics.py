from __future__ import annotations

import math
from typing import Any

from slipstream.records import BlockTiming, Choice, Fingerprint, Recipe, TrialSpec
from slipstream.testing.made_fingerprints import made_fingerprint, made_fingerprint_of
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.budget import Budget, Costs
from slipstream.tuning.numerics import Claim, NumericsCheck
from slipstream.tuning.trials import RecipeTrials, TrialPool


def test_a_redrawn_recipe_is_judged_by_its_loss_curve() -> None:
    assert Claim("approximate").judged_as() == "approximate"
    assert Claim("approximate", is_redrawn=True).judged_as() == "redrawn"
    assert Claim("approximate", is_redrawn=True).judged_as(is_timed=False) == "redrawn"
    assert Claim("different", is_redrawn=True).judged_as() == "different"


def test_only_the_timed_trial_of_a_technique_that_needs_proof_may_redraw() -> None:
    claim = Claim("reordered", needs_proof=True)
    assert claim.judged_as() == "redrawn" and claim.judged_as(is_timed=False) == "reordered"


def test_each_control_runs_a_block_however_short_the_budget_is(listener: Any) -> None:
    backend = SimulatedBackend(choice_factors(), fingerprint=_rounded)
    pool = TrialPool(backend, listener)
    numerics_check = NumericsCheck(pool, Budget(backend, 5.0), Costs(0.05, (5, 1)), pool.trials("base", Recipe()))
    candidate = pool.trials("candidate", Recipe((Choice("a"),)))
    pool.run_block(candidate, 0, 40, 1)
    assert numerics_check.full_check(Claim("approximate", "bf16"), pool.record(candidate), 40, math.inf).is_sound
    controls = [spec for spec in backend.specs if spec.role == "rounding"]
    assert [(spec.precision, spec.draw) for spec in controls] == [("bf16", draw) for draw in range(4)]


def test_controls_that_would_end_too_late_do_not_start(listener: Any) -> None:
    backend = SimulatedBackend(choice_factors(), fingerprint=_rounded)
    pool, costs = TrialPool(backend, listener), Costs(0.05, (5, 1))
    costs.started(4.0)
    numerics_check = NumericsCheck(pool, Budget(backend, 60.0), costs, pool.trials("base", Recipe()))
    candidate, claim = pool.trials("candidate", Recipe((Choice("a"),))), Claim("reordered")
    pool.run_block(pool.trials("base", Recipe()), 0, 40, 1)
    pool.run_block(candidate, 0, 40, 1)
    needed_s = numerics_check.controls_s(claim)
    numerics = numerics_check.full_check(claim, pool.record(candidate), 40, backend.now_s() + 0.4 * needed_s)
    assert (numerics.is_sound, numerics.basis) == (None, "no_time")
    assert not [spec for spec in backend.specs if spec.role in ("rounding", "seed")]
    assert numerics_check.full_check(claim, pool.record(candidate), 40, backend.now_s() + needed_s).is_sound
    assert numerics_check.controls_s(claim) < needed_s


def _rounded(spec: TrialSpec, num_steps: int) -> Fingerprint:
    is_candidate = spec.role == "candidate"
    return made_fingerprint(num_steps, rounding=1e-7) if is_candidate else made_fingerprint_of(spec, num_steps)


def test_the_fingerprint_of_any_start_of_the_base_is_used(listener: Any) -> None:
    backend = SimulatedBackend(choice_factors())
    pool = TrialPool(backend, listener)
    early, late = pool.trials("base", Recipe()), RecipeTrials("base", Recipe())
    numerics_check = NumericsCheck(pool, Budget(backend, 600.0), Costs(0.05, (5, 1)), early)
    numerics_check.bases.append(late)
    pool.run_block(early, 0, 5, 1)
    pool.run_block(late, 0, 60, 1)
    candidate = pool.trials("candidate", Recipe((Choice("a"),)))
    pool.run_block(candidate, 0, 60, 1)
    assert numerics_check.full_check(Claim("reordered"), pool.record(candidate), candidate.num_steps, math.inf).is_sound
    assert early.num_steps < 10, "another start of the base has run far enough"


def test_controls_start_together_and_run_one_after_the_other(listener: Any) -> None:
    """A block ends trials that were started ahead, so both must have entered before one of them runs."""
    calls: list[str] = []

    class RecordingBackend(SimulatedBackend):
        def expect(self, spec: TrialSpec) -> None:
            calls.append(f"expect {spec.role}")

        def enter(self, spec: TrialSpec) -> str:
            calls.append(f"enter {spec.role}")
            return super().enter(spec)

        def run_block(
            self, trial: int, round: int, num_steps: int, lead_in: int, limit_s: float = math.inf
        ) -> BlockTiming:
            calls.append("block")
            return super().run_block(trial, round, num_steps, lead_in, limit_s)

    backend = RecordingBackend(choice_factors(), fingerprint=_rounded)
    pool = TrialPool(backend, listener)
    numerics_check = NumericsCheck(pool, Budget(backend, 5.0), Costs(0.05, (5, 1)), pool.trials("base", Recipe()))
    candidate = pool.trials("candidate", Recipe((Choice("a"),)))
    pool.run_block(candidate, 0, 40, 1)
    numerics_check.full_check(Claim("reordered"), pool.record(candidate), 1, math.inf)
    calls = calls[calls.index("enter rounding") - 1 :]
    two = ["expect rounding", "enter rounding", "enter rounding", "block", "block"]
    assert calls == [*two, "enter rounding", "block"]


def test_lower_precision_beside_other_draws_is_kept_and_named_by_the_looser_class(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    """Half precision alone keeps the gradients. With workers, which draw other augmentations, gradients differ."""

    def seen(spec: TrialSpec, num_steps: int) -> Fingerprint:
        if spec.recipe.setting_of("workers"):
            return made_fingerprint(num_steps, seed=3)
        if spec.recipe.setting_of("half"):
            return made_fingerprint(num_steps, rounding=1e-4)
        return made_fingerprint_of(spec, num_steps)

    known = {"workers": technique("redrawn"), "half": technique("approximate", settings=("bf16",))}
    tuning = run(SimulatedBackend(choice_factors(workers=0.6, half=0.7), fingerprint=seen), known)
    assert tuning.recipe == Recipe((Choice("workers"), Choice("half", "bf16")))
    assert verdict_of(tuning, "recipe", kind="total").numerics.claimed == "approximate"
