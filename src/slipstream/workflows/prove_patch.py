"""Races the patched source, with an empty recipe, against the original source.

The race uses the trials, the statistics and the numerics check of a tuning. The real files are not changed. The patched
trial finds the new text in its own overlay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipstream.numbers import plural
from slipstream.records import (
    BlockTiming,
    Choice,
    Edit,
    Failure,
    NumericsClass,
    Recipe,
    Session,
    Setting,
    TechniqueNote,
    TrialRecord,
    TrialSpec,
    Verdict,
)
from slipstream.supervise.race import ProcessBackend, tick_of
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.techniques._core.catalogue import Technique, catalogue, technique
from slipstream.techniques._core.observation import Observation
from slipstream.tuning import proof as tuning_proof
from slipstream.tuning.candidates import CONTROL, loosest
from slipstream.tuning.journal import Journal
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.state import TuningState

PATCH: Final = "patch"


def prove(
    session: Session, files: Mapping[str, bytes], edits: Sequence[Edit], budget_s: float, tell: ProgressListener
) -> Verdict:
    """Races the patch and returns the verdict on the patch.

    `files` maps paths to the new text, and `edits` are the edits of the patch. Raises RaceError if the script cannot be
    raced.
    """
    known: dict[str, Technique] = {CONTROL: technique(CONTROL), PATCH: Patched(numerics_of(edits))}
    with ProcessBackend(session.script, tick=tick_of(session)) as process_backend:
        backend = PatchedBackend(process_backend, files)
        state = TuningState(session, backend, TuneOptions(budget_s), _QuietListener(tell), known, Journal("", {}))
        try:
            tuning_proof.prove(state, Recipe((Choice(PATCH),)), [])
        finally:
            state.pool.clear()
    verdict = msgspec.structs.replace(
        state.verdicts[-1], technique=PATCH, kind="single", recipe=Recipe((Choice(PATCH),))
    )
    tell.decided(verdict)
    return verdict


def numerics_of(edits: Sequence[Edit]) -> NumericsClass:
    """Returns the loosest numerics class of the techniques in the patch.

    Patched source cannot be made to draw the base's random numbers. A technique that draws its own numbers is therefore
    `redrawn`, and is judged by its loss curve.
    """
    cards = [catalogue()[edit.technique].CARD for edit in edits if edit.technique in catalogue()]
    if any(card.needs_proof or card.numerics == "redrawn" for card in cards):
        return "redrawn"
    return loosest([card.numerics for card in cards])


class Patched:
    """The patch in the form of a technique, because a tuning races techniques."""

    __name__ = PATCH

    def __init__(self, numerics: NumericsClass) -> None:
        self.CARD = Card(title="The patched source", seam="process", causes=(), numerics=numerics)

    def applies(self, observation: Observation) -> Answer:
        return YES

    def settings(self, observation: Observation) -> Sequence[Setting]:
        return [True]

    def apply(self, context: object, setting: Setting) -> None:
        raise AssertionError("a patch is part of the source and is never applied as a technique")

    def edit(self, observation: Observation, setting: Setting) -> list[Edit]:
        return []


class _QuietListener:
    """Passes on every event except the verdict, which `prove` may still change before it reports it."""

    def __init__(self, tell: ProgressListener) -> None:
        self.racing, self.entering, self.block_done, self.left, self.note, self.best, self.waiting = (
            tell.racing,
            tell.entering,
            tell.block_done,
            tell.left,
            tell.note,
            tell.best,
            tell.waiting,
        )

    def decided(self, verdict: Verdict) -> None:
        pass


class PatchedBackend:
    """A backend on which a trial with the technique `patch` runs the patched source."""

    def __init__(self, process_backend: ProcessBackend, files: Mapping[str, bytes]) -> None:
        self._process_backend = process_backend
        self._files = files
        self._specs: dict[int, TrialSpec] = {}

    def enter(self, spec: TrialSpec) -> Failure | None:
        self._specs[spec.ident] = spec
        if spec.recipe.setting_of(PATCH) is not None:
            self._process_backend.lay_over(spec.ident, self._files)
        bare: Recipe = spec.recipe.without(PATCH)
        return self._process_backend.enter(msgspec.structs.replace(spec, recipe=bare))

    def expect(self, spec: TrialSpec) -> None:
        """Does nothing. A trial cannot be started early, because its overlay must contain the patched files first."""

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int, limit_s: float = math.inf) -> BlockTiming:
        return self._process_backend.run_block(trial, round, num_steps, lead_in, limit_s)

    def wait(self, seconds: float) -> float | None:
        return self._process_backend.wait(seconds)

    def record(self, trial: int) -> TrialRecord:
        return self._completed(trial, self._process_backend.record(trial))

    def leave(self, trial: int) -> TrialRecord:
        return self._completed(trial, self._process_backend.leave(trial))

    def capacity(self) -> int:
        return self._process_backend.capacity()

    def now_s(self) -> float:
        return self._process_backend.now_s()

    def _completed(self, trial: int, record: TrialRecord) -> TrialRecord:
        """Adds the recipe with the patch and what the patch changed, because the trial itself does not know them."""
        spec = self._specs[trial]
        is_patched = spec.recipe.setting_of(PATCH) is not None
        patched = [TechniqueNote(PATCH, plural(len(self._files), "file"))] if is_patched else []
        return msgspec.structs.replace(record, spec=spec, changes=[*record.changes, *patched])
