from __future__ import annotations

from slipstream.records import Choice, Recipe
from slipstream.testing.simulated_backend import SimulatedTrack
from slipstream.tuning.progress import Silence
from slipstream.tuning.trials import Paddock


def _recipe(name: str) -> Recipe:
    return Recipe((Choice(name),))


def test_a_script_that_ends_is_started_again() -> None:
    track = SimulatedTrack(num_steps=25)
    paddock = Paddock(track, Silence())
    seat = paddock.seat("base", Recipe())
    laps = [paddock.lap(seat, round, 8, 1) for round in range(6)]
    assert not any(lap.failure for lap in laps)
    assert [lap.is_last for lap in laps] == [False, False, True] * 2
    assert len(track.entrants) == 2 and len(seat.past) == 2


def test_the_stump_of_a_block_does_not_count() -> None:
    paddock = Paddock(SimulatedTrack(num_steps=22), Silence())
    seat = paddock.seat("base", Recipe())
    laps = [paddock.lap(seat, round, 8, 1) for round in range(3)]
    assert laps[-1].num_steps == 3 and laps[-1].is_disturbed


def test_a_script_too_short_to_time_fails_and_says_so() -> None:
    paddock = Paddock(SimulatedTrack(num_steps=4), Silence())
    lap = paddock.lap(paddock.seat("base", Recipe()), 0, 8, 1)
    assert lap.failure == "the script ended after 4 steps, too few to time it"


def test_one_timed_block_is_enough_for_a_script_that_ends() -> None:
    paddock = Paddock(SimulatedTrack(num_steps=10), Silence())
    seat = paddock.seat("base", Recipe())
    laps = [paddock.lap(seat, round, 8, 1) for round in range(4)]
    assert not any(lap.failure for lap in laps)
    assert [lap.is_disturbed for lap in laps] == [False, True, False, True]


def test_by_relaunching_it_is_one_against_one() -> None:
    paddock = Paddock(SimulatedTrack(num_riders=1), Silence())
    assert paddock.num_challengers() == 1 and paddock.num_challengers(num_fixed=2) == 0


def test_the_witness_is_that_of_the_rider_that_came_farthest() -> None:
    paddock = Paddock(SimulatedTrack(num_steps=25), Silence())
    seat = paddock.seat("base", Recipe())
    for round in range(4):
        paddock.lap(seat, round, 8, 1)
    record = paddock.record(seat)
    assert max(step for step, _ in record.witness.losses) == 24
    assert len(record.laps) == 4


def test_idle_riders_leave_when_room_is_needed_and_the_base_last() -> None:
    track = SimulatedTrack(num_riders=3)
    paddock = Paddock(track, Silence())
    base, a, b, c = (paddock.seat("base", Recipe()), *(paddock.seat("candidate", _recipe(n)) for n in "abc"))
    for seat in (base, a, b):
        assert paddock.enter(seat) == ""
    paddock.release(base)
    paddock.release(b)
    assert paddock.enter(c) == ""
    assert b.rider is None and base.rider is not None and a.rider is not None
    assert paddock.lap(base, 0, 4, 1).num_steps == 4
    assert track.most_at_once == 3


def test_a_recipe_keeps_its_seat_and_its_rider() -> None:
    track = SimulatedTrack()
    paddock = Paddock(track, Silence())
    paddock.enter(paddock.seat("candidate", _recipe("a")))
    paddock.release(paddock.seat("candidate", _recipe("a")))
    paddock.enter(paddock.seat("candidate", _recipe("a")))
    assert len(track.entrants) == 1


def test_whoever_could_not_enter_leaves_a_record_and_no_rider() -> None:
    paddock = Paddock(SimulatedTrack(fault=lambda entrant, num_steps: "no memory"), Silence())
    seat = paddock.seat("candidate", _recipe("a"))
    assert paddock.enter(seat) == "no memory"
    assert seat.rider is None and [record.failure for record in paddock.past] == ["no memory"]
