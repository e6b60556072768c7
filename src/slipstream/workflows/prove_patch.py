"""A patch raced: the patched source, run bare, against the source as it is, with the same riders, statistics and
numerics as a tuning. The real files are never touched: the patched rider finds the new text in its own overlay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipstream.records import Choice, Edit, Entrant, Lap, NumericsClass, Recipe, RiderRecord, Session, Setting, Verdict
from slipstream.supervise.race import Relay, tick_of
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.techniques._core.catalogue import Technique, catalogue, technique
from slipstream.techniques._core.observation import Observation
from slipstream.tuning.candidates import CONTROL, loosest
from slipstream.tuning.final_race import race_total
from slipstream.tuning.journal import Journal
from slipstream.tuning.options import TuneOrder
from slipstream.tuning.progress import Teller
from slipstream.tuning.state import Meeting
from slipstream.tuning.trials import RaceError

PATCH: Final = "patch"


def prove(
    session: Session, files: Mapping[str, bytes], edits: Sequence[Edit], budget_s: float, tell: Teller
) -> Verdict:
    """`files`: the new text by path; `edits`: what was written. RaceError where the script could not be raced."""
    known: dict[str, Technique] = {CONTROL: technique(CONTROL), PATCH: Patched(numerics_of(edits))}
    with Relay(session.script, tick=tick_of(session)) as relay:
        track = PatchedTrack(relay, files)
        meeting = Meeting(session, track, TuneOrder(budget_s), _Reticent(tell), known, Journal("", {}))
        try:
            if failure := meeting.paddock.enter(
                meeting.base
            ):  # first: how many fit beside it, its twins too, shows then
                raise RaceError(f"The script as it is could not be raced: {failure}.")
            race_total(meeting, Recipe((Choice(PATCH),)))
        finally:
            meeting.paddock.clear()
    verdict = _weighed(meeting.verdicts[-1])
    tell.decided(verdict)
    return verdict


def _weighed(verdict: Verdict) -> Verdict:
    """A recipe whose techniques have won one by one may be kept after a few rounds; a patch has won nothing before."""
    is_faster = verdict.speed is not None and verdict.speed.low > 1.0
    if verdict.decision == "kept" and not is_faster:
        verdict = msgspec.structs.replace(verdict, decision="unsure", reason="not faster beyond doubt")
    return msgspec.structs.replace(verdict, technique=PATCH, kind="single", recipe=Recipe((Choice(PATCH),)))


def numerics_of(edits: Sequence[Edit]) -> NumericsClass:
    """The loosest of its techniques; but a source cannot draw the base's random numbers for the proof, so what draws
    its own is judged by its curve."""
    cards = [catalogue()[edit.technique].CARD for edit in edits if edit.technique in catalogue()]
    if any(card.needs_proof or card.numerics == "redrawn" for card in cards):
        return "redrawn"
    return loosest([card.numerics for card in cards])


class Patched:
    """The patch as a tuning asks about it."""

    __name__ = PATCH

    def __init__(self, numerics: NumericsClass) -> None:
        self.CARD = Card(title="The patched source", seam="process", causes=(), numerics=numerics)

    def applies(self, observation: Observation) -> Answer:
        return YES

    def settings(self, observation: Observation) -> Sequence[Setting]:
        return [True]

    def apply(self, rig: object, setting: Setting) -> None:
        raise AssertionError("a patch is in the source: nothing is put in place")

    def edit(self, observation: Observation, setting: Setting) -> list[Edit]:
        return []


class _Reticent:
    """Passes on everything but the verdict, which is weighed once more before it is told."""

    def __init__(self, tell: Teller) -> None:
        self.racing, self.entering, self.lap, self.left, self.note = (
            tell.racing,
            tell.entering,
            tell.lap,
            tell.left,
            tell.note,
        )

    def decided(self, verdict: Verdict) -> None:
        pass


class PatchedTrack:
    """A relay on which the technique `patch` is the patched source and nothing else."""

    def __init__(self, relay: Relay, files: Mapping[str, bytes]) -> None:
        self._relay = relay
        self._files = files
        self._entrants: dict[int, Entrant] = {}

    def enter(self, entrant: Entrant) -> str:
        self._entrants[entrant.ident] = entrant
        if entrant.recipe.setting_of(PATCH) is not None:
            self._relay.lay_over(entrant.ident, self._files)
        bare: Recipe = entrant.recipe.without(PATCH)
        return self._relay.enter(msgspec.structs.replace(entrant, recipe=bare))

    def renew(self) -> None:
        self._relay.renew()

    def expect(self, entrant: Entrant) -> None:
        """Each starts by itself: what is laid over it must be there before."""

    def lap(self, rider: int, round: int, num_steps: int, lead_in: int) -> Lap:
        return self._relay.lap(rider, round, num_steps, lead_in)

    def record(self, rider: int) -> RiderRecord:
        return self._told(rider, self._relay.record(rider))

    def leave(self, rider: int) -> RiderRecord:
        return self._told(rider, self._relay.leave(rider))

    def capacity(self) -> int:
        return self._relay.capacity()

    def now_s(self) -> float:
        return self._relay.now_s()

    def _told(self, rider: int, record: RiderRecord) -> RiderRecord:
        """With the recipe that it entered with, and what the patch changed, which the rider itself does not know."""
        entrant = self._entrants[rider]
        is_patched = entrant.recipe.setting_of(PATCH) is not None
        changes = [*record.changes, *([f"{PATCH}: {len(self._files)} files"] if is_patched else [])]
        return msgspec.structs.replace(record, entrant=entrant, changes=changes)
