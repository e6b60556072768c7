"""A recipe's place in the race, through as many riders as it takes: a script that comes to its end is started again.
The paddock keeps no more riders on the track than it holds. Decides nothing about speed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec

from slipstream.records import Entrant, Lap, Recipe, RiderRecord, Role, Witness
from slipstream.tuning.progress import Teller
from slipstream.wire.backend import Track

_NAMES: dict[Role, str] = {
    "twin": "nothing",
    "rounding": "rounding twin",
    "coarse": "coarse twin",
    "seed": "seed twin",
}


class RaceError(Exception):
    """A sentence for the user: there is nothing to compare with."""


class Seat:
    def __init__(self, role: Role, recipe: Recipe) -> None:
        self.role = role
        self.recipe = recipe
        self.rider: int | None = None  # on the track now
        self.past: list[RiderRecord] = []
        self.laps: list[Lap] = []
        self.laps_of_rider: list[Lap] = []  # timed, of the one that is on the track now
        self.age = 0  # steps that this one has behind it

    @property
    def name(self) -> str:
        return _NAMES.get(self.role) or (f"proof of {self.recipe}" if self.role == "proof" else str(self.recipe))

    @property
    def num_steps(self) -> int:
        """The farthest step that any of its riders came to."""
        return max((lap.first_step + lap.num_steps for lap in self.laps), default=0)


class Paddock:
    """Everyone who is on the track or was."""

    def __init__(self, track: Track, tell: Teller) -> None:
        self._track = track
        self._tell = tell
        self._idents = itertools.count()
        self._seats: dict[tuple[Role, Recipe], Seat] = {}
        self._on_track: list[Seat] = []  # longest first
        self._idle: set[int] = set()  # ids of seats that may be asked to leave when room is needed
        self._expected: dict[int, int] = {}  # the number that a seat will ride under
        self.past: list[RiderRecord] = []
        self.even: Callable[[Lap], Lap] = lambda lap: lap  # spreads what only some blocks paid for over all of them

    def seat(self, role: Role, recipe: Recipe) -> Seat:
        """The one that this recipe already has, which spares its start-up if it is still on the track."""
        return self._seats.setdefault((role, recipe), Seat(role, recipe))

    def num_challengers(self, num_fixed: int = 1) -> int:
        """Beside so many others. By relaunching one against one: every further rider is a start in every round."""
        return max(2, self._track.capacity()) - num_fixed

    def is_relaunching(self) -> bool:
        return self._track.capacity() < 2

    def renew(self) -> None:
        """Those that enter from now on share no luck with those before."""
        self._expected.clear()
        self._track.renew()

    def expect(self, seat: Seat | None) -> None:
        """It enters next, and may be launched beside the one that enters now."""
        if seat is not None and seat.rider is None and id(seat) not in self._expected:
            ident = self._expected[id(seat)] = next(self._idents)
            self._track.expect(Entrant(ident, seat.role, seat.recipe))

    def enter(self, seat: Seat) -> str:
        """ "" once it stands on the track, or why it does not."""
        self._idle.discard(id(seat))
        if seat.rider is not None:
            return ""
        self._make_room()
        ident = self._expected.pop(id(seat), None)
        ident = next(self._idents) if ident is None else ident
        self._tell.entering(seat.name)
        failure = self._track.enter(Entrant(ident, seat.role, seat.recipe))
        if failure:
            self._file(seat, ident)
        else:
            seat.rider, seat.laps_of_rider, seat.age = ident, [], 0
            self._on_track.append(seat)
        return failure

    def lap(self, seat: Seat, round: int, num_steps: int, lead_in: int) -> Lap:
        """A block of this seat. A script that ended in the block before is started again first."""
        failure = self.enter(seat)
        if failure:
            return Lap(-1, round, 0, 0, 0.0, 0, failure=failure)
        assert seat.rider is not None
        lap = self.even(self._track.lap(seat.rider, round, num_steps, lead_in))
        if lap.is_last and not lap.failure:
            lap = _closed(lap, num_steps, is_only=not seat.laps_of_rider)
        if lap.num_steps and not lap.is_disturbed:
            seat.laps_of_rider.append(lap)
        seat.laps.append(lap)
        seat.age = lap.first_step + lap.num_steps
        self._tell.lap(seat.name, round)
        if lap.failure or lap.is_last:
            self.leave(seat)
        return lap

    def record(self, seat: Seat) -> RiderRecord:
        """All its riders as one."""
        now = [self._track.record(seat.rider)] if seat.rider is not None else []
        return merged([*seat.past, *now]) or RiderRecord(Entrant(-1, seat.role, seat.recipe))

    def release(self, seat: Seat) -> None:
        """May stay until its room is needed."""
        if seat.rider is not None:
            self._idle.add(id(seat))

    def leave(self, seat: Seat) -> None:
        if seat.rider is None:
            return
        rider, seat.rider, seat.age = seat.rider, None, 0
        self._idle.discard(id(seat))
        self._on_track.remove(seat)
        self._file(seat, rider)

    def _file(self, seat: Seat, rider: int) -> None:
        record = self._track.leave(rider)
        seat.past.append(record)
        self.past.append(record)

    def clear(self) -> None:
        for seat in list(self._on_track):
            self.leave(seat)

    def _make_room(self) -> None:
        idle = [seat for seat in self._on_track if id(seat) in self._idle]
        idle.sort(key=lambda seat: seat.role == "base")  # the base is wanted again soonest
        while idle and len(self._on_track) >= self._track.capacity():
            self.leave(idle.pop(0))


def _closed(lap: Lap, num_steps: int, is_only: bool) -> Lap:
    """The last of a rider. Half a block or less is a stump: the end of an epoch, evaluation, saving."""
    if lap.num_steps > num_steps // 2:
        return lap
    reached = lap.first_step + lap.num_steps
    failure = f"the script ended after {reached} steps, too few to time it" if is_only else ""
    return msgspec.structs.replace(lap, is_disturbed=True, failure=failure)


def merged(records: Iterable[RiderRecord]) -> RiderRecord | None:
    """The witness is that of the rider that came farthest: each of them began at step 0."""
    known = list(records)
    if not known:
        return None
    return msgspec.structs.replace(
        known[-1],
        entrant=known[0].entrant,
        laps=[lap for record in known for lap in record.laps],
        witness=max((record.witness for record in known), key=_length),
        startup_s=known[0].startup_s,
        peak_bytes=max(record.peak_bytes for record in known),
        device_peak_bytes=max(record.device_peak_bytes for record in known),
    )


def _length(witness: Witness) -> int:
    return max((step for step, _ in witness.losses), default=-1)
