"""The state that the phases of a tuning share, such as the options, the budget, the trials, and the verdicts and
estimates so far. The state makes no decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from slipstream.diagnose.steps.selection import epoch_steps
from slipstream.diagnose.steps.training_time import training_length
from slipstream.recipe.conflicts import Conflict, conflict_with, find_conflicts
from slipstream.records import ROUNDOFF, Choice, Precision, Recipe, Session, TrialRecord, Verdict
from slipstream.techniques._core.catalogue import Technique
from slipstream.tuning.block_length import BlockPlan, block, evened, typical_step_s
from slipstream.tuning.budget import Budget, Costs
from slipstream.tuning.candidates import CONTROL, loosest
from slipstream.tuning.journal import Journal, Selected
from slipstream.tuning.numerics import Claim, NumericsCheck
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.payback import one_off_s
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.rounds import RoundRunner
from slipstream.tuning.trials import RecipeTrials, TrialPool
from slipstream.wire.backend import RaceBackend

UNKNOWN_STEP_S = 0.1  # assumed until the base has been timed


class TuningState:
    """The shared state of one tuning."""

    def __init__(
        self,
        session: Session,
        backend: RaceBackend,
        order: TuneOptions,
        tell: ProgressListener,
        techniques: Mapping[str, Technique],
        journal: Journal,
    ) -> None:
        self.session = session
        self.order = order
        self.tell = tell
        self.techniques = techniques
        self.journal = journal
        self.conflicts: list[Conflict] = find_conflicts({ident: one.CARD for ident, one in techniques.items()})
        block_plan = _block_plan(session)
        self.budget = Budget(backend, order.budget_s)
        self.costs = Costs(block_plan.step_s, block(block_plan))
        self.pool = TrialPool(backend, tell, lambda timing: evened(timing, block_plan))
        self.base = self.pool.trials("base", Recipe())
        self.control = self.pool.trials("twin", Recipe((Choice(CONTROL),)))
        self.numerics_check = NumericsCheck(self.pool, self.budget, self.costs, self.base)
        self.runner = RoundRunner(
            self.pool, self.budget, self.costs, tell, block_plan, session.environment.num_usable, order.seed
        )
        self.verdicts: list[Verdict] = []
        self.notes: list[str] = []
        self.recipe = Recipe()  # the best recipe so far
        self.writable = Recipe()  # the best recipe that can be written into the source, if `recipe` cannot be written
        self.estimates: dict[Recipe, float] = {Recipe(): 0.0}  # log ratio against the base, from the selection
        self.control_gains: list[float] = []  # log ratio of the A/A control, one for each of its processes

    # --- results ------------------------------------------------------------------------------------------------------

    def decide(self, verdict: Verdict) -> Verdict:
        """Stores a verdict and returns it. The new verdict replaces earlier verdicts of the same kind on the same
        technique with the same setting."""
        self.verdicts = [one for one in self.verdicts if not _is_replaced(one, verdict)]
        self.verdicts.append(verdict)
        self.tell.decided(verdict)
        return verdict

    def revise(self, choice: Choice, **facts: object) -> None:
        """Changes the verdict on a choice after a later phase."""
        for at, verdict in enumerate(self.verdicts):
            if verdict.kind == "single" and verdict.choice == choice:
                self.verdicts[at] = msgspec.structs.replace(verdict, **facts)

    def adopt(self, recipe: Recipe, gain: float | None) -> None:
        """Makes this the best recipe so far. `gain` is its estimated log ratio against the base."""
        self.recipe = recipe
        self.costs.built_on(self.pool.record(self.trials(recipe)).startup_s)
        if gain is not None:
            self.estimates[recipe] = gain
        self.tell.best(recipe, math.exp(self.estimates.get(recipe, 0.0)))

    def remember_pass(self, is_last: bool) -> None:
        """Stores the recipe and the verdicts so far in the journal. `is_last`: only the proof is left."""
        gains = (self.estimates.get(self.recipe, 0.0), self.estimates.get(self.writable, 0.0))
        self.journal.remember_pass(
            Selected(self.recipe, gains[0], list(self.verdicts), is_last, self.writable, gains[1])
        )

    def continue_from(self, selected: Selected) -> None:
        """Restores what an interrupted tuning stored."""
        self.adopt(selected.recipe, selected.gain)
        self.writable = selected.writable
        self.estimates[selected.writable] = selected.writable_gain
        for verdict in selected.verdicts:
            self.decide(verdict)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
            self.tell.note(sentence)

    # --- trials and recipes -------------------------------------------------------------------------------------------

    def trials(self, recipe: Recipe) -> RecipeTrials:
        return self.pool.trials("candidate", recipe) if recipe.choices else self.base

    def conflict(self, technique: str, recipe: Recipe) -> Conflict | None:
        return conflict_with(technique, recipe, self.conflicts)

    def claim(self, recipe: Recipe) -> Claim:
        cards = [self.techniques[choice.technique].CARD for choice in recipe.choices]
        classes = [card.numerics for card in cards]
        return Claim(
            loosest(classes), self._precision(recipe), "redrawn" in classes, any(card.needs_proof for card in cards)
        )

    def _precision(self, recipe: Recipe) -> Precision:
        """Returns the coarsest precision among the approximate techniques of the recipe. The precision of a technique
        is on its card, or is its setting."""
        named: list[Precision] = []
        for choice in recipe.choices:
            card = self.techniques[choice.technique].CARD
            if card.numerics == "approximate":
                named.append(card.precision or msgspec.convert(choice.setting, Precision))
        return max(named, key=lambda precision: ROUNDOFF[precision], default="fp32")

    # --- figures ------------------------------------------------------------------------------------------------------

    def base_step_s(self) -> float:
        """Returns the step time of the unchanged script. Every other step time of a tuning is derived from this one and
        a ratio."""
        known = typical_step_s(self.base.timings)
        return known if known is not None else UNKNOWN_STEP_S

    def one_off_s(self, record: TrialRecord, step_s: float) -> float:
        """Returns by how much the start-up takes longer than the first start-up of the A/A control. The base is not a
        fair reference, because it starts first and its files may not be in the page cache. The base is used only if no
        trial of the control has ended. For techniques that gain only from the second epoch on, the result includes the
        missing gain of the first epoch."""
        first = self.control.past[0] if self.control.past else self.pool.record(self.base)
        not_gained_s = 0.0
        in_epoch = epoch_steps(self.session)
        if in_epoch and any(self.techniques[choice.technique].CARD.is_later for choice in record.spec.recipe.choices):
            not_gained_s = max(0.0, in_epoch * (self.base_step_s() - step_s))
        return one_off_s(record.startup_s, first.startup_s) + not_gained_s


def _is_replaced(known: Verdict, verdict: Verdict) -> bool:
    """Whether the new verdict replaces the known one. A technique that did not apply or was not raced has only one
    verdict, whatever its setting is."""
    if known.kind != verdict.kind or known.technique != verdict.technique or verdict.kind == "noise":
        return False
    return known.setting == verdict.setting or known.cause in ("not_applicable", "not_raced")


def _block_plan(session: Session) -> BlockPlan:
    num_steps, _ = training_length(session)
    in_epoch = epoch_steps(session) or 0.0
    num_workers = max((loader.num_workers for loader in session.loaders), default=0)
    return BlockPlan(
        session.summary.step_ms / 1e3 if session.summary else UNKNOWN_STEP_S,
        round(in_epoch) if abs(in_epoch - round(in_epoch)) < 0.01 else 0,
        int(num_steps or 0),
        max(num_workers, round(session.environment.num_usable)),  # a technique may try this many workers
    )
