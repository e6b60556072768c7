"""One comparison: a challenger against its anchor, round by round, until it is decided. It computes an outcome from
block timings and has no side effects."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from slipstream.records import BlockTiming, Failure, Speed, TrialRecord
from slipstream.tuning.pace_model import PaceModel, is_timed, middle
from slipstream.tuning.step_drift import trend
from slipstream.tuning.trials import RecipeTrials
from slipstream.verify.confidence_sequence import LONG_SLOPES, SLOPES, ConfidenceSequence

Outcome = Literal["faster", "not_faster", "slower", "failed", "declined", "no_effect", "measured", "undecided"]

FUTILITY = 0.02  # how often a true gain may be given up: this costs power, but causes no false claim
WORTH = 0.03  # a gain that is certainly smaller, and whose estimate is within the margin, is given up
TIGHT = 0.01  # relative half-width at which an interval is narrow enough to report
PLAINLY_SLOWER = 3.0  # times the anchor's step, in two rounds in a row
CLEARLY_SLOWER = 1.3  # times the anchor's step, in four rounds in a row
MIN_ROUNDS = 8  # fewer do not bound anything, however clear they look
MIN_MEASURED = 16  # rounds
LEADING_ROUNDS = 5  # after which a leading candidate may be kept provisionally
LEADING = 1.1  # a gain that is large enough to change the gains of others
OPTIMISM = 3.0  # standard errors: a paused candidate may be better than its estimate
HOPEFUL = 1.5
LUCK = 0.025  # two starts of one script may differ permanently by this much, which more rounds cannot show
UNPROMISING = 2.0  # standard errors: a recipe whose gain plus this is below LUCK makes way for others
UNPROMISING_ROUNDS = 24
# Standard errors of the pace model for a clear lead. A lead by chance costs only time: the final race is the proof.
CLEAR = 2.3
FEW = 2.0  # added to CLEAR, divided by the number of rounds minus one


class Comparison:
    """The goal `decide` races for a verdict, `measure` for an interval, and `control` for the noise of the A/A
    control."""

    def __init__(
        self,
        trials: RecipeTrials,
        anchor: RecipeTrials,
        *,
        alpha: float,
        margin: float,
        floor: Callable[[], float],
        goal: Literal["decide", "measure", "control"] = "decide",
        base: RecipeTrials | None = None,
        is_mirrored: bool = False,
        max_rounds: int = 0,
        pace_model: PaceModel | None = None,
    ) -> None:
        self.trials = trials
        self.anchor = anchor
        self.sequence = ConfidenceSequence(LONG_SLOPES if goal == "measure" else SLOPES)
        self.against_base = self.sequence if base is None or base is anchor else ConfidenceSequence()
        self.outcome: Outcome | None = None
        self.failure = ""
        self.num_rounds_of_turn = 0
        self.is_built_on = False  # kept provisionally, before it was decided
        self.was_leading = False  # when it was kept provisionally
        self.is_doubtful = False  # will probably be ended after its first steps
        self._speed: Speed | None = None  # computed once for each round
        self._ratios: list[float] = []
        self._num_before = 0  # rounds before it was started again
        self._alpha = alpha  # this comparison's share of the tuning's alpha
        self._margin = margin
        self._floor = floor  # the gain that the machine's noise requires
        self._goal = goal
        self._base = base
        self._is_mirrored = is_mirrored  # tests whether the anchor is faster than the challenger
        self._max_rounds = max_rounds
        self._pace_model = pace_model if goal == "decide" and not is_mirrored else None

    @property
    def technique(self) -> str:
        """The last technique of the recipe, which the comparison is about."""
        return self.trials.recipe.choices[-1].technique

    @property
    def is_control(self) -> bool:
        return self._goal == "control"

    @property
    def is_final(self) -> bool:
        """Whether this is the final race of the whole recipe, whose result the user is shown."""
        return self._goal == "measure"

    @property
    def is_patient(self) -> bool:
        """Whether it may be paused while others race."""
        return self._goal == "decide"

    def speed(self) -> Speed | None:
        if not self.sequence.num_rounds:
            return None
        if self._speed is None or self._speed.num_rounds != self.sequence.num_rounds:
            self._speed = self.sequence.speed()
        return self._speed

    def speed_against_base(self, through: Speed | None = None) -> Speed | None:
        """The speed against the base. `through` is the anchor's speed, for races without the base."""
        speed = self.speed()
        if self.against_base is self.sequence or speed is None:
            return speed
        if self.against_base.num_rounds:
            return self.against_base.speed()
        return chained(through, speed) if through is not None else None

    def promise(self) -> float:
        """The estimated speed ratio, without an interval."""
        return math.exp(self._gain()) if self._ratios else 1.0

    def optimistic_ratio(self) -> float:
        """An upper estimate of the speed ratio. It is larger after fewer rounds."""
        if len(self._ratios) < 2:
            return math.inf
        return self.promise() * math.exp(OPTIMISM * self._uncertainty())

    def is_promising(self) -> bool:
        return self._goal == "decide" and self.outcome is None and self.promise() > 1.0 + 2 * self._margin

    def may_take_the_lead(self) -> bool:
        """Whether it has just started and may still lead."""
        is_new = self.is_patient and len(self._ratios) < LEADING_ROUNDS
        return is_new and (not self.num_rounds_of_turn or self.is_promising())

    def lacks_proof(self) -> bool:
        """Whether the whole recipe seems faster, but is not proved yet."""
        return self.is_final and self.promise() > 1.0 + self._margin and not self.is_proved()

    def is_proved(self) -> bool:
        """Whether the whole reported interval lies above 1. It has half of alpha on either side."""
        return self.sequence.is_faster(0.0, self._alpha / 2)

    def is_unpromising(self) -> bool:
        """Whether the whole recipe would not be kept even if it is better than its estimate. Others may be better."""
        is_enough = self.is_final and len(self._ratios) >= UNPROMISING_ROUNDS
        return is_enough and self.promise() * math.exp(UNPROMISING * self._uncertainty()) < 1.0 + LUCK

    def is_leading(self) -> bool:
        """Whether it leads so clearly that others are raced on top of it. This is no proof."""
        is_enough = self._goal == "decide" and len(self._ratios) >= LEADING_ROUNDS
        return is_enough and self.promise() >= LEADING and self._clearness() > CLEAR + FEW / (len(self._ratios) - 1)

    def is_hopeful(self) -> bool:
        """Whether more rounds would probably show a gain."""
        is_enough = self._goal == "decide" and len(self._ratios) >= MIN_ROUNDS
        return is_enough and self.promise() > 1.0 + self._margin and self._clearness() > HOPEFUL

    def _clearness(self) -> float:
        """The estimated gain in standard errors."""
        return self._gain() / self._uncertainty()

    def _gain(self) -> float:
        """The log of the speed ratio, from the pace model if there is one, else from the comparison's own rounds."""
        if self._pace_model is not None:
            return self._pace_model.gain(id(self.trials), id(self.anchor))
        return middle(self._ratios)

    def _uncertainty(self) -> float:
        if self._pace_model is not None:
            return self._pace_model.uncertainty(id(self.trials), id(self.anchor))
        mean = statistics.fmean(self._ratios)
        variance = math.fsum((ratio - mean) ** 2 for ratio in self._ratios) / (len(self._ratios) - 1)
        return math.sqrt(max(variance, 1e-12) / len(self._ratios))

    def add(self, timings: Mapping[int, BlockTiming]) -> None:
        """Adds a round with blocks of the challenger and its anchor. Disturbed blocks are ignored."""
        timing, anchor = timings[id(self.trials)], timings[id(self.anchor)]
        self.num_rounds_of_turn += 1
        if timing.failure:
            self.refuse(timing.failure)
            return
        ratio = log_ratio(*((timing, anchor) if self._is_mirrored else (anchor, timing)))
        if ratio is not None:
            self.sequence.add(ratio)
            self._ratios.append(ratio)
        if self.against_base is not self.sequence and id(self._base) in timings:
            ratio = log_ratio(timings[id(self._base)], timing)
            if ratio is not None:
                self.against_base.add(ratio)
        self._decide()

    def add_warm_up(self, timings: Sequence[BlockTiming], anchor_s: float) -> None:
        """Adds the first steps of a trial that was too slow to race. They show roughly by how much."""
        for timing in timings:
            if timing.failure and timing.step_s > 0.0:
                self.sequence.add(math.log(anchor_s / timing.step_s))

    def _decide(self) -> None:
        seen = self.sequence
        if num_lost := self._num_plainly_lost():
            times = f"{1 / self.promise():.1f} times the step of {self.anchor.name}"
            self.fail(Failure(f"{times}, and far behind in {num_lost} rounds in a row", "too_slow"))
        elif self._goal == "decide":
            margin = max(self._margin, self._floor())
            if seen.num_rounds >= MIN_ROUNDS and seen.is_faster(margin, self._alpha):
                self.outcome = "faster"
            elif seen.is_not_faster(self._margin, FUTILITY) or self._is_hopeless():
                self.outcome = "not_faster"
        elif self._goal == "measure" and self._num_of_last_start() >= MIN_MEASURED and seen.num_rounds % 4 == 0:
            speed = seen.speed()
            if speed.high - speed.low <= 2 * TIGHT * speed.ratio:
                self.outcome = "measured"
        if self._max_rounds and self.num_rounds_of_turn >= self._max_rounds:
            self.end("measured")

    def _num_plainly_lost(self) -> int:
        """The number of clearly lost rounds in a row, if it is enough to give up, else 0. A wrong decision costs power,
        but causes no false claim."""
        if self.is_control or self._is_mirrored:
            return 0
        rows = ((2, PLAINLY_SLOWER), (4, CLEARLY_SLOWER))
        lost = (num for num, times in rows if len(self._ratios) >= num and max(self._ratios[-num:]) < -math.log(times))
        return next(lost, 0)

    def _is_hopeless(self) -> bool:
        return self.sequence.is_not_faster(WORTH, FUTILITY) and self.promise() < 1.0 + self._margin

    def is_over(self) -> bool:
        return self.outcome is not None

    def end(self, outcome: Outcome) -> None:
        self.outcome = self.outcome or outcome

    def fail(self, failure: Failure) -> None:
        self.outcome = "slower" if failure.kind == "too_slow" else "failed"
        self.failure = failure.detail

    def refuse(self, failure: Failure) -> None:
        """Called when the trial has ended with a failure. A slow start alone does not decide about a whole recipe,
        which was faster in earlier races, nor about a candidate with rounds: its rounds count."""
        if failure.kind == "too_slow" and (self.is_final or self._ratios):
            self.abandon(f"its start was too slow, {failure.detail}")
        else:
            self.fail(failure)

    def abandon(self, reason: str) -> None:
        """Ends the race for a reason that is not about the challenger's speed: its anchor or the base failed, or only a
        start was slow."""
        self.end("undecided")
        self.failure = reason

    def build_on(self) -> None:
        """Keeps it provisionally: it counts as faster for now."""
        self.was_leading = self.is_leading()
        self.outcome, self.is_built_on = "faster", True

    def start_again(self) -> None:
        """Continues with new processes."""
        self._num_before = len(self._ratios)
        self.outcome, self.failure = None, ""

    def trend(self) -> tuple[float, float] | None:
        """The speed ratio at the start and later in the training, or None if there is no clear difference."""
        return trend([self._ratios[: self._num_before], self._ratios[self._num_before :]])

    def promise_of_last_start(self) -> float:
        is_enough = self._num_of_last_start() >= LEADING_ROUNDS
        return math.exp(middle(self._ratios[self._num_before :])) if is_enough else self.promise()

    def _num_of_last_start(self) -> int:
        return len(self._ratios) - self._num_before

    def reopen(self) -> None:
        """Continues the comparison if it is undecided."""
        if self.outcome == "undecided":
            self.outcome, self.failure = None, ""

    def has_effect(self, record: TrialRecord) -> bool:
        """Whether every technique of the recipe really changed something. If not, the comparison is over."""
        if self.trials.role != "candidate":
            return True
        for choice in self.trials.recipe.choices:
            if any(change.technique == choice.technique for change in record.changes):
                continue
            declined = [note.text for note in record.declined if note.technique == choice.technique]
            self.outcome = "declined" if declined else "no_effect"
            self.failure = "; ".join(declined) or "it had no effect on this script"
            return False
        return True


def chained(first: Speed, second: Speed) -> Speed:
    """The speed of C against A, from B against A and C against B. The interval is wider than necessary."""
    rounds = min(first.num_rounds, second.num_rounds)
    return Speed(first.ratio * second.ratio, first.low * second.low, first.high * second.high, rounds)


def log_ratio(base: BlockTiming, challenger: BlockTiming) -> float | None:
    """The log of the speed ratio, or None if one of the blocks does not count."""
    if not is_timed(base) or not is_timed(challenger):
        return None
    return math.log(base.step_s / challenger.step_s)
