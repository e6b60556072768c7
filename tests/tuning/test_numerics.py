from __future__ import annotations

from typing import Any

from slipstream.records import Choice, Entrant, Lap, Recipe, Witness
from slipstream.testing.made_fingerprints import made_witness, made_witness_of
from slipstream.testing.simulated_backend import SimulatedTrack, choice_factors
from slipstream.tuning.budget import Budget
from slipstream.tuning.numerics import Claim, Jury
from slipstream.tuning.trials import Paddock, Seat


def test_what_redraws_is_judged_by_its_curve_whatever_else_is_on() -> None:
    assert Claim("approximate").judged_as() == "approximate"
    assert Claim("approximate", is_redrawn=True).judged_as() == "redrawn"
    assert Claim("approximate", is_redrawn=True).judged_as(is_timed=False) == "redrawn"
    assert Claim("different", is_redrawn=True).judged_as() == "different"


def test_only_the_timed_rider_of_what_needs_proof_may_redraw() -> None:
    claim = Claim("reordered", needs_proof=True)
    assert claim.judged_as() == "redrawn" and claim.judged_as(is_timed=False) == "reordered"


def test_the_twins_that_are_still_to_ride_are_foreseen(listener: Any) -> None:
    track = SimulatedTrack(choice_factors())
    paddock = Paddock(track, listener)
    jury = Jury(paddock, Budget(track, 60.0), paddock.seat("base", Recipe()))
    classes = ("identical", "reordered", "redrawn", "approximate")
    assert [jury.num_rides(Claim(numerics)) for numerics in classes] == [0, 2, 2, 3]
    jury.hear(Claim("redrawn"), paddock.record(paddock.seat("candidate", Recipe((Choice("a"),)))), 40)
    assert [jury.num_rides(Claim(numerics)) for numerics in classes] == [0, 0, 0, 1]


def test_any_start_of_the_base_bears_witness(listener: Any) -> None:
    track = SimulatedTrack(choice_factors())
    paddock = Paddock(track, listener)
    early, late = paddock.seat("base", Recipe()), Seat("base", Recipe())
    jury = Jury(paddock, Budget(track, 600.0), early)
    jury.bases.append(late)
    paddock.lap(early, 0, 5, 1)
    paddock.lap(late, 0, 60, 1)
    candidate = paddock.seat("candidate", Recipe((Choice("a"),)))
    paddock.lap(candidate, 0, 60, 1)
    assert jury.hear(Claim("reordered"), paddock.record(candidate), candidate.num_steps).is_sound
    assert early.num_steps < 10, "another start of it has ridden far enough"


def test_twins_start_side_by_side_and_ride_one_after_the_other(listener: Any) -> None:
    """A ride ends whoever was launched ahead: both must have entered before one of them rides."""
    told: list[str] = []

    class Track(SimulatedTrack):
        def expect(self, entrant: Entrant) -> None:
            told.append(f"expect {entrant.role}")

        def enter(self, entrant: Entrant) -> str:
            told.append(f"enter {entrant.role}")
            return super().enter(entrant)

        def lap(self, rider: int, round: int, num_steps: int, lead_in: int) -> Lap:
            told.append("lap")
            return super().lap(rider, round, num_steps, lead_in)

    track = Track(choice_factors())
    paddock = Paddock(track, listener)
    jury = Jury(paddock, Budget(track, 60.0), paddock.seat("base", Recipe()))
    jury.hear(Claim("redrawn"), paddock.record(paddock.seat("candidate", Recipe((Choice("a"),)))), 0)
    told = told[told.index("enter rounding") - 1 :]
    assert told[:4] == ["expect seed", "enter rounding", "enter seed", "lap"]


def test_the_last_hearing_asks_for_no_longer_curves_than_its_own(listener: Any) -> None:
    def seen(entrant: Entrant, num_steps: int) -> Witness:
        is_reordered = entrant.role == "candidate"
        return made_witness(num_steps, rounding=1.1e-7) if is_reordered else made_witness_of(entrant, num_steps)

    for is_last, times in ((True, 1), (False, 2)):
        track = SimulatedTrack(choice_factors(), witness=seen)
        paddock = Paddock(track, listener)
        base, candidate = paddock.seat("base", Recipe()), paddock.seat("candidate", Recipe((Choice("a"),)))
        jury = Jury(paddock, Budget(track, 6000.0), base)
        for seat in (base, candidate):
            paddock.lap(seat, 0, 200, 1)
        jury.hear(Claim("reordered"), paddock.record(candidate), 200, is_last)
        for role in ("rounding", "seed"):
            assert 200 * times <= paddock.seat(role, Recipe()).num_steps <= 200 * times + 60


def test_lower_precision_beside_other_draws_is_kept_and_named_by_the_looser_class(
    run: Any, technique: Any, verdict_of: Any
) -> None:
    """Half precision alone keeps the gradients; beside workers, which draw other augmentations, nobody can."""

    def seen(entrant: Entrant, num_steps: int) -> Witness:
        if entrant.recipe.setting_of("workers"):
            return made_witness(num_steps, seed=3)
        if entrant.recipe.setting_of("half"):
            return made_witness(num_steps, rounding=1e-4)
        return made_witness_of(entrant, num_steps)

    known = {"workers": technique("redrawn"), "half": technique("approximate")}
    tuning = run(SimulatedTrack(choice_factors(workers=0.6, half=0.7), witness=seen), known)
    assert tuning.recipe == Recipe((Choice("workers"), Choice("half")))
    assert verdict_of(tuning, "recipe", kind="total").numerics.claimed == "approximate"
