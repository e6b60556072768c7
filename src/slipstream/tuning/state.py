"""The state that the phases of a tuning share: the trials, the budget, and the verdicts so far. It makes no
decisions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from slipstream.diagnose.selection import epoch_steps
from slipstream.diagnose.training_time import training_length
from slipstream.recipe.conflicts import Conflict, conflict_with
from slipstream.records import Choice, Decision, Numerics, Recipe, Session, Speed, TrialRecord, Verdict
from slipstream.techniques._core.catalogue import Technique
from slipstream.tuning.block_length import BlockPlan, evened, typical_step_s
from slipstream.tuning.budget import Budget
from slipstream.tuning.candidates import loosest
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.control import NoiseControl
from slipstream.tuning.journal import Journal
from slipstream.tuning.numerics import Claim, NumericsCheck
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.pace_model import PaceModel
from slipstream.tuning.payback import one_off_s
from slipstream.tuning.progress import ProgressListener
from slipstream.tuning.scheduler import RaceScheduler
from slipstream.tuning.trials import RecipeTrials, TrialPool
from slipstream.wire.backend import RaceBackend

UNKNOWN_STEP_S = 0.1  # until the base has been timed


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
        self.budget = Budget(backend, order.budget_s)
        block_plan = _block_plan(session)
        self.pool = TrialPool(backend, tell, lambda timing: evened(timing, block_plan))
        self.base = self.pool.trials("base", Recipe())
        self.numerics_check = NumericsCheck(self.pool, self.budget, self.base)
        self.noise = NoiseControl(order.margin)
        self.pace_model = PaceModel()
        self.scheduler = RaceScheduler(self.pool, self.budget, tell, order.seed, block_plan, self.pace_model)
        self.conflicts: list[Conflict] = []
        self.verdicts: list[Verdict] = []
        self.notes: list[str] = []
        self.recipe = Recipe()  # the best recipe so far
        self.ground = Recipe()  # what techniques are raced on top of
        # Choices that were kept provisionally because of a clear lead. Others were only the most promising.
        self.leads: set[Choice] = set()
        self.hope_s = 0.0  # the time from which the most promising candidate is raced as the whole recipe
        self._comparisons: dict[tuple[Recipe, Recipe], Comparison] = {}  # single races, by recipe and ground
        self._control: RecipeTrials | None = None
        self._fresh: dict[Recipe, RecipeTrials] = {}

    # --- verdicts ---------------------------------------------------------------------------------------------------

    def decide(self, verdict: Verdict, is_remembered: bool = True) -> Verdict:
        if verdict.kind == "single":  # a repeated race replaces the earlier verdict
            self.verdicts = [one for one in self.verdicts if not _is_outdated(one, verdict)]
        self.verdicts.append(verdict)
        self.tell.decided(verdict)
        if is_remembered:
            self.journal.remember(verdict)
        return verdict

    def revise(self, choice: Choice, decision: Decision, reason: str) -> None:
        """Replaces the decision and reason of a single race by those of a later phase."""
        for at, verdict in enumerate(self.verdicts):
            if verdict.kind == "single" and verdict.choice == choice:
                settled = msgspec.structs.replace(verdict, decision=decision, reason=reason, is_provisional=False)
                self.verdicts[at] = settled

    def revise_last(self, technique: str, decision: Decision, reason: str) -> None:
        last = next((one for one in reversed(self.verdicts) if one.technique == technique), None)
        if last is not None and last.kind == "single":
            self.revise(last.choice, decision, reason)

    def provisional(self) -> list[Choice]:
        """The choices of the recipe that are not proved yet."""
        built = {verdict.choice for verdict in self.verdicts if verdict.is_provisional and verdict.decision == "kept"}
        return [choice for choice in self.recipe.choices if choice in built]

    @property
    def num_provisional(self) -> int:
        return len(self.provisional())

    def give_up(self, choice: Choice, reason: str) -> None:
        """Removes a choice that could not be proved from the recipe."""
        self.revise(choice, "unsure", reason)
        self.recipe = self.recipe.without(choice.technique)

    def note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
            self.tell.note(sentence)

    # --- trials -------------------------------------------------------------------------------------------------------

    def trials(self, recipe: Recipe) -> RecipeTrials:
        return self.pool.trials("candidate", recipe) if recipe.choices else self.base

    def fresh_trials(self, recipe: Recipe) -> RecipeTrials:
        """New trials of the recipe: the process that won may be fast by chance. Later calls return the same trials."""
        if recipe not in self._fresh:
            self.pool.leave(self.trials(recipe))
            self._fresh[recipe] = RecipeTrials("candidate", recipe)
        return self._fresh[recipe]

    def adopt(self, trials: RecipeTrials) -> None:
        """Uses these as the new trials of their recipe: they were not selected for their speed."""
        self._fresh.setdefault(trials.recipe, trials)

    @property
    def anchor(self) -> RecipeTrials:
        """The trials that techniques race against: the unchanged script, or the script with the ground."""
        return self.trials(self.ground)

    def on_ground(self, choice: Choice) -> Recipe:
        """The ground with this choice, which replaces conflicting choices."""
        rivals = [one for one in self.ground.choices if self._conflict(one, choice) is not None]
        kept = [one for one in self.ground.choices if one not in rivals]
        return Recipe(tuple(kept)).plus(choice)

    def give_way(self, ground: Recipe) -> None:
        """Revises the verdicts on choices of an earlier ground that a conflicting choice has replaced."""
        for choice in ground.choices:
            conflicts = [self._conflict(choice, other) for other in self.recipe.choices]
            conflict = next((one for one in conflicts if one is not None), None)
            if conflict is not None and choice not in self.recipe.choices:
                self.revise(choice, "rejected", f"{conflict}; the other one gains more")

    def _conflict(self, choice: Choice, other: Choice) -> Conflict | None:
        return conflict_with(choice.technique, Recipe((other,)), self.conflicts)

    def control_comparison(self, anchor: RecipeTrials, max_rounds: int = 0) -> Comparison:
        """A comparison with an A/A control in a new process: a process may be fast or slow by chance for its whole
        life."""
        trials = RecipeTrials("twin", anchor.recipe.plus(Choice("nothing")))
        self.numerics_check.control = self.numerics_check.control or trials
        self._control = self._control or trials
        control = self.comparison(trials, anchor, goal="control", max_rounds=max_rounds)
        self.noise.watch(control)
        return control

    def race_of(self, choice: Choice, alpha: float) -> Comparison:
        """The comparison of a technique on top of the ground. An undecided earlier comparison continues."""
        recipe = self.on_ground(choice)
        known = self._comparisons.get((recipe, self.ground))
        if known is None or known.outcome not in (None, "undecided"):
            known = self.comparison(self.trials(recipe), self.anchor, alpha, base=self.base)
            self._comparisons[recipe, self.ground] = known
        known.reopen()
        return known

    def comparison(
        self, trials: RecipeTrials, anchor: RecipeTrials, alpha: float | None = None, **how: object
    ) -> Comparison:
        settings = {"alpha": self.order.alpha if alpha is None else alpha, "margin": self.order.margin, **how}
        settings["pace_model"] = self.pace_model
        return Comparison(trials, anchor, floor=lambda: self.noise.margin(anchor), **settings)  # type: ignore[arg-type]

    # --- facts about a recipe -----------------------------------------------------------------------------------------

    def claim(self, recipe: Recipe) -> Claim:
        cards = [self.techniques[choice.technique].CARD for choice in recipe.choices]
        classes = [card.numerics for card in cards]
        return Claim(loosest(classes), "redrawn" in classes, any(card.needs_proof for card in cards))

    def companions(self) -> list[RecipeTrials]:
        """The base, if it fits in memory, so that every row of the table is compared with it."""
        return [self.base] if self.pool.num_challengers(num_fixed=2) > 0 else []

    def quick_check(self, trials: RecipeTrials, record: TrialRecord) -> Numerics | None:
        if not record.fingerprint.losses and not record.fingerprint.snapshots:
            return None
        return self.numerics_check.quick_check(self.claim(trials.recipe), record)

    def speed_of(self, recipe: Recipe) -> Speed | None:
        """The speed against the base, from the last verdict on this recipe."""
        return next((v.speed for v in reversed(self.verdicts) if v.recipe == recipe and v.speed is not None), None)

    def is_open(self, technique: str) -> bool:
        """Whether there is no verdict on the technique yet."""
        return all(verdict.technique != technique for verdict in self.verdicts)

    def had_nothing_to_do(self, technique: str) -> bool:
        """Whether the technique did not apply so far, and no trial has used it."""
        mine = [one for one in self.verdicts if one.technique == technique]
        return all(one.decision == "not_applicable" and not one.recipe.choices for one in mine)

    def base_step_s(self) -> float:
        known = typical_step_s(self.base.timings)
        return known if known is not None else UNKNOWN_STEP_S

    def one_off_s(self, record: TrialRecord, step_s: float | None) -> float:
        """The start-up time beyond the control's. The control is used because, as for a candidate, its files are
        already in the page cache; the base starts first. For techniques that gain only from the second epoch on, the
        missing gain of the first epoch is added."""
        controls = self._control.past if self._control is not None else []
        first = controls[0] if controls else self.pool.record(self.base)
        return one_off_s(record.startup_s, first.startup_s) + self._not_gained_s(record.spec.recipe, step_s)

    def _not_gained_s(self, recipe: Recipe, step_s: float | None) -> float:
        in_epoch = epoch_steps(self.session)
        is_later = any(self.techniques[choice.technique].CARD.is_later for choice in recipe.choices)
        if not is_later or not in_epoch or step_s is None:
            return 0.0
        return max(0.0, in_epoch * (self.base_step_s() - step_s))


def _is_outdated(known: Verdict, verdict: Verdict) -> bool:
    if known.kind != "single" or known.technique != verdict.technique:
        return False
    return known.decision == "not_applicable" or (known.decision != "kept" and known.setting == verdict.setting)


def _block_plan(session: Session) -> BlockPlan:
    num_steps, _ = training_length(session)
    in_epoch = epoch_steps(session) or 0.0
    num_workers = max((loader.num_workers for loader in session.loaders), default=0)
    return BlockPlan(
        session.summary.step_ms / 1e3 if session.summary else UNKNOWN_STEP_S,
        round(in_epoch) if abs(in_epoch - round(in_epoch)) < 0.01 else 0,
        int(num_steps or 0),
        max(num_workers, round(session.environment.num_usable)),  # as many workers may be tried
    )
