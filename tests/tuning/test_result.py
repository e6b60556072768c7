"""The figures of a tuning agree."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Length, Recipe
from slipstream.testing.made_sessions import made_loader, made_session
from slipstream.testing.noise_model import Noise, NoiseModel
from slipstream.testing.simulated_backend import SimulatedBackend, choice_factors
from slipstream.tuning.candidates import CONTROL

A = Recipe((Choice("a"),))


def test_every_row_has_its_numbers(run: Any, technique: Any, verdict_of: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.8)), {"a": technique()})
    row = verdict_of(tuning, "a")
    assert row.step_ms == pytest.approx(40.0) and row.samples_per_s == pytest.approx(800.0)
    assert row.own_ratio == pytest.approx(1.25) and not row.speed.is_bounded
    assert row.batch_size == 32 and row.peak_bytes == 2**30
    assert row.numerics.is_sound and row.recipe == A
    assert tuning.base_step_ms == pytest.approx(50.0) and tuning.base_samples_per_s == pytest.approx(640.0)
    assert tuning.base_batch_size == 32 and tuning.base_peak_bytes == 2**30
    assert {record.spec.role for record in tuning.trials} >= {"base", "twin", "candidate"}
    assert all(not record.fingerprint.snapshots for record in tuning.trials), "sketches are not kept"
    assert verdict_of(tuning, CONTROL, kind="noise").speed == tuning.noise


@pytest.mark.parametrize("counted", [32, 0])  # samples counted by the trials; 0: the script has no loader
def test_all_rows_follow_from_the_base_and_a_ratio(run: Any, technique: Any, counted: int) -> None:
    noise = Noise(random.Random(3), noise_model=NoiseModel())
    backend = SimulatedBackend(choice_factors(a=0.8, b=1.1), noise=noise, batch_size=counted, lottery=0.05)
    tuning = run(backend, {"a": technique(), "b": technique()})
    assert tuning.base_samples_per_s * tuning.base_step_ms == pytest.approx(32_000)
    rows = [one for one in tuning.verdicts if one.step_ms is not None]
    assert {row.kind for row in rows} >= {"single", "total"}
    for row in rows:
        assert row.step_ms * row.speed.ratio == pytest.approx(tuning.base_step_ms)
        assert row.samples_per_s == pytest.approx(tuning.base_samples_per_s * row.speed.ratio)


def test_the_total_is_that_of_the_proof(run: Any, technique: Any, verdict_of: Any) -> None:
    noise = Noise(random.Random(3), noise_model=NoiseModel())
    tuning = run(SimulatedBackend(choice_factors(a=0.8), noise=noise, lottery=0.05), {"a": technique()})
    assert tuning.recipe == A and tuning.total == verdict_of(tuning, "recipe", kind="total").speed
    assert tuning.candidate == Recipe() and tuning.candidate_speed is None


def test_the_candidate_is_named_if_nothing_was_proved(run: Any, technique: Any) -> None:
    backend = SimulatedBackend(choice_factors(a=0.5), cold_start_s=lambda recipe: 40.0)
    tuning = run(backend, {"a": technique()}, budget_s=150.0)
    assert tuning.recipe == Recipe() and tuning.total is None and tuning.seconds_after is None
    assert tuning.candidate == A and tuning.candidate_speed.ratio == pytest.approx(2.0, rel=0.01)
    assert [one.cause for one in tuning.verdicts if one.kind == "single"] == ["not_proved"]


def test_a_recipe_that_seems_slower_in_the_proof_is_no_candidate(run: Any, technique: Any) -> None:
    class Cold(SimulatedBackend):
        def __init__(self) -> None:
            super().__init__(
                lambda recipe: 1.0 if not recipe.choices else 1.1 if self.specs[-1].is_cold else 0.7,
                cold_start_s=lambda recipe: 30.0,
            )

    tuning = run(Cold(), {"a": technique()}, budget_s=150.0)
    assert [one.cause for one in tuning.verdicts if one.kind == "total"] == ["measured"]
    assert tuning.recipe == tuning.candidate == Recipe()


def test_a_row_and_the_candidate_show_the_same_estimate(run: Any, technique: Any, verdict_of: Any) -> None:
    """The last rung and the race of the winners differ. Both show the race, which is later."""
    starts: list[Recipe] = []

    def factor(recipe: Recipe) -> float:
        starts.append(recipe)
        return 1.0 if recipe != A else 0.5 if starts.count(A) < 40 else 0.8

    backend = SimulatedBackend(factor, cold_start_s=lambda recipe: 200.0)
    tuning = run(backend, {"a": technique()}, budget_s=150.0)
    own = verdict_of(tuning, "a").own_ratio
    assert tuning.candidate_speed.ratio == pytest.approx(own)


def test_a_refuted_recipe_is_no_candidate(run: Any, technique: Any) -> None:
    class Cold(SimulatedBackend):
        """Gains only in processes that share a parent."""

        def __init__(self) -> None:
            super().__init__(
                lambda recipe: 0.7 if recipe == A and not self.specs[-1].is_cold else 1.0 + len(recipe.choices) / 9
            )

    tuning = run(Cold(), {"a": technique()})
    assert tuning.recipe == tuning.candidate == Recipe()


def test_the_ceiling_is_scaled_if_the_machines_speed_has_changed(run: Any, technique: Any, session: Any) -> None:
    tuning = run(SimulatedBackend(choice_factors(a=0.5), step_s=0.013), {"a": technique()})
    best_ms, checked_ms = session.summary.ceilings.best_ms(), session.summary.step_ms
    assert tuning.ceiling_ms / tuning.base_step_ms == pytest.approx(best_ms / checked_ms)


def test_the_whole_training_before_and_after(run: Any, technique: Any) -> None:
    seen = diagnose(made_session(length=Length(num_steps=10_000)))
    assert seen.summary is not None and seen.summary.seconds_left is not None
    tuning = run(SimulatedBackend(choice_factors(a=0.5), step_s=0.032), {"a": technique()}, seen)
    assert tuning.seconds_before == 4 + seen.summary.seconds_left, "start-up included"
    assert tuning.seconds_after == pytest.approx(4 + seen.summary.seconds_left / 2, rel=0.01), "it gets no faster"


def test_no_more_of_the_whole_training_is_saved_than_the_ratio_allows(run: Any, technique: Any) -> None:
    seen = diagnose(made_session(length=Length(num_steps=10_000)))
    assert seen.summary is not None
    slow_median = msgspec.structs.replace(seen.summary, step_ms=1.5 * seen.summary.step_ms)
    seen = msgspec.structs.replace(seen, summary=slow_median)
    tuning = run(SimulatedBackend(choice_factors(a=0.5), step_s=0.048), {"a": technique()}, seen)
    assert tuning.seconds_before == 4 + slow_median.seconds_left
    assert tuning.seconds_after == pytest.approx(4 + slow_median.seconds_left / tuning.total.ratio, rel=0.01)


def test_the_missing_gain_of_the_first_epoch_is_a_one_off_cost(run: Any, technique: Any, verdict_of: Any) -> None:
    """The cache is filled before the race. In a training the first epoch fills it, without a gain."""
    seen = diagnose(made_session(length=Length(num_epochs=2), loader=made_loader(num_batches=400)))
    tuning = run(SimulatedBackend(choice_factors(a=0.5)), {"a": technique(is_later=True)}, seen)
    assert tuning.recipe == A and verdict_of(tuning, "a").payback_steps == 400
    assert tuning.seconds_before is not None and tuning.seconds_after is not None
    saved_s = tuning.seconds_before - tuning.seconds_after
    assert saved_s < 0.3 * tuning.seconds_before, "half of half, not half"
