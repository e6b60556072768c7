"""One comparison: a challenger against its anchor, round by round, until it is decided. Pure: laps in, outcome out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from slipstream.records import BlockTiming, Speed, TrialRecord
from slipstream.tuning.pace_model import PaceModel, is_timed, middle
from slipstream.tuning.step_drift import trend
from slipstream.tuning.trials import RecipeTrials
from slipstream.verify.confidence_sequence import LONG_SLOPES, SLOPES, ConfidenceSequence
from slipstream.wire.backend import SLOWER

Outcome = Literal["faster", "not_faster", "slower", "failed", "declined", "no_effect", "measured", "undecided"]

FUTILITY = 0.02  # how often a true gain may be given up: that costs power, not honesty
WORTH = 0.03  # a gain that is certainly less, and does not even look like one, is given up
TIGHT = 0.01  # half the width at which an interval is good enough to print
PLAINLY_SLOWER = 3.0  # twice in a row
CLEARLY_SLOWER = 1.3  # four times in a row
MIN_ROUNDS = 8  # fewer bound nothing, however clear they look
MIN_MEASURED = 16  # rounds
LEADING_ROUNDS = 5  # after which a lead may be built on, to be proved later
LEADING = 1.1  # a gain that changes what the others are worth
OPTIMISM = 3.0  # times its uncertainty: a candidate that waits may be better than it looked
HOPEFUL = 1.5
LUCK = 0.025  # two starts of one script may differ by as much for all their lives, and no number of rounds shows it
DIM = 2.0  # times its uncertainty: a whole recipe that gains no more than luck may, even so, gives way to others
DIM_ROUNDS = 24
CLEAR = 2.3  # times its uncertainty, by the standings: a lead by luck costs time, for the last race is the proof,
FEW = 2.0  # and more after few rounds


class Comparison:
    """goal: `decide` is a race for a verdict, `measure` a race for an interval, `control` the twin beside them."""

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
        self.is_built_on = False  # before it was decided
        self.was_leading = False  # when it was built on
        self.is_doubtful = False  # will most likely be out with its first steps
        self._speed: Speed | None = None  # reckoned once for each round
        self._ratios: list[float] = []
        self._num_before = 0  # rounds, until it was started again
        self._alpha = alpha  # of this comparison: its share of the tuning's
        self._margin = margin
        self._floor = floor  # what the machine's noise asks of a gain
        self._goal = goal
        self._base = base
        self._is_mirrored = is_mirrored  # asks whether the anchor is faster than the challenger
        self._max_rounds = max_rounds
        self._pace_model = pace_model if goal == "decide" and not is_mirrored else None

    @property
    def technique(self) -> str:
        """The last of its recipe's: the one that it is about."""
        return self.trials.recipe.choices[-1].technique

    @property
    def is_control(self) -> bool:
        return self._goal == "control"

    @property
    def is_final(self) -> bool:
        """The whole recipe: what the user is promised."""
        return self._goal == "measure"

    @property
    def is_patient(self) -> bool:
        """May be asked to wait for its next turn."""
        return self._goal == "decide"

    def speed(self) -> Speed | None:
        if not self.sequence.num_rounds:
            return None
        if self._speed is None or self._speed.num_rounds != self.sequence.num_rounds:
            self._speed = self.sequence.speed()
        return self._speed

    def speed_against_base(self, through: Speed | None = None) -> Speed | None:
        """`through` is the anchor's, where the base did not ride along."""
        speed = self.speed()
        if self.against_base is self.sequence or speed is None:
            return speed
        if self.against_base.num_rounds:
            return self.against_base.speed()
        return chained(through, speed) if through is not None else None

    def promise(self) -> float:
        """What it seems to win, cheaply."""
        return math.exp(self._gain()) if self._ratios else 1.0

    def training_time(self) -> float:
        """What it may still turn out to win: the fewer rounds it has had, the more."""
        if len(self._ratios) < 2:
            return math.inf
        return self.promise() * math.exp(OPTIMISM * self._uncertainty())

    def is_promising(self) -> bool:
        return self._goal == "decide" and self.outcome is None and self.promise() > 1.0 + 2 * self._margin

    def may_take_the_lead(self) -> bool:
        """Has just started, and nothing speaks against it yet."""
        is_new = self.is_patient and len(self._ratios) < LEADING_ROUNDS
        return is_new and (not self.num_rounds_of_turn or self.is_promising())

    def lacks_proof(self) -> bool:
        """The whole recipe, faster as it seems and not yet beyond doubt."""
        return self.is_final and self.promise() > 1.0 + self._margin and not self.is_proved()

    def is_proved(self) -> bool:
        """All of the interval that is printed lies beyond 1: it has half of alpha on either side."""
        return self.sequence.is_faster(0.0, self._alpha / 2)

    def is_dim(self) -> bool:
        """The whole recipe, and not to be kept even if it turns out better than it looks: others may be."""
        is_enough = self.is_final and len(self._ratios) >= DIM_ROUNDS
        return is_enough and self.promise() * math.exp(DIM * self._uncertainty()) < 1.0 + LUCK

    def is_leading(self) -> bool:
        """So clearly that it is built on: what others are worth shows on top of it. Proves nothing."""
        is_enough = self._goal == "decide" and len(self._ratios) >= LEADING_ROUNDS
        return is_enough and self.promise() >= LEADING and self._clearness() > CLEAR + FEW / (len(self._ratios) - 1)

    def is_hopeful(self) -> bool:
        """Looks like a gain that more rounds would show."""
        is_enough = self._goal == "decide" and len(self._ratios) >= MIN_ROUNDS
        return is_enough and self.promise() > 1.0 + self._margin and self._clearness() > HOPEFUL

    def _clearness(self) -> float:
        """What it seems to win, in times of its own uncertainty."""
        return self._gain() / self._uncertainty()

    def _gain(self) -> float:
        """Its log, by the standings where there are any, or by its own rounds."""
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
        """A round that the challenger and its anchor both rode; disturbed blocks count for nothing."""
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
        """Of a rider that was too slow to be let in: a few steps say by how much, with hardly an interval."""
        for timing in timings:
            if timing.failure and timing.step_s > 0.0:
                self.sequence.add(math.log(anchor_s / timing.step_s))

    def _decide(self) -> None:
        seen = self.sequence
        if num_lost := self._num_plainly_lost():
            times = f"{1 / self.promise():.1f} times the step of {self.anchor.name}"
            self.fail(f"{SLOWER} {times}, and far behind {num_lost} times in a row")
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
        """Rounds in a row, so many that no more of them would save it; 0: there is hope. To be wrong here costs power,
        not honesty."""
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

    def fail(self, failure: str) -> None:
        self.outcome = "slower" if failure.startswith(SLOWER) else "failed"
        self.failure = failure.removeprefix(SLOWER).strip()

    def refuse(self, failure: str) -> None:
        """Its rider is out. A start that was too slow decides nothing about a whole recipe, which was faster in the
        races before, nor about one that has ridden rounds: those count."""
        if failure.startswith(SLOWER) and (self.is_final or self._ratios):
            self.abandon(f"it started too slowly, {failure.removeprefix(SLOWER).strip()}")
        else:
            self.fail(failure)

    def abandon(self, reason: str) -> None:
        """The race ended for a reason that says nothing about the challenger: its anchor or the base did not stay in
        it, or only a start was slow."""
        self.end("undecided")
        self.failure = reason

    def build_on(self) -> None:
        """It counts as faster for now."""
        self.was_leading = self.is_leading()
        self.outcome, self.is_built_on = "faster", True

    def start_again(self) -> None:
        """With other processes."""
        self._num_before = len(self._ratios)
        self.outcome, self.failure = None, ""

    def trend(self) -> tuple[float, float] | None:
        """What it wins at first and what it wins later on; None where that is the same."""
        return trend([self._ratios[: self._num_before], self._ratios[self._num_before :]])

    def promise_of_last_start(self) -> float:
        is_enough = self._num_of_last_start() >= LEADING_ROUNDS
        return math.exp(middle(self._ratios[self._num_before :])) if is_enough else self.promise()

    def _num_of_last_start(self) -> int:
        return len(self._ratios) - self._num_before

    def reopen(self) -> None:
        """Undecided so far, it goes on."""
        if self.outcome == "undecided":
            self.outcome, self.failure = None, ""

    def has_effect(self, record: TrialRecord) -> bool:
        """Whether every technique of its recipe really changed something; if not, the contest is over."""
        if self.trials.role != "candidate":
            return True
        for choice in self.trials.recipe.choices:
            said = f"{choice.technique}: "
            if any(sentence.startswith(said) for sentence in record.changes):
                continue
            declined = [sentence.removeprefix(said) for sentence in record.declined if sentence.startswith(said)]
            self.outcome = "declined" if declined else "no_effect"
            self.failure = "; ".join(declined) or "it had no effect on this script"
            return False
        return True


def chained(first: Speed, second: Speed) -> Speed:
    """The third against the first, where only neighbours raced; wider than it need be."""
    rounds = min(first.num_rounds, second.num_rounds)
    return Speed(first.ratio * second.ratio, first.low * second.low, first.high * second.high, rounds)


def log_ratio(base: BlockTiming, challenger: BlockTiming) -> float | None:
    """None: one of the two does not count."""
    if not is_timed(base) or not is_timed(challenger):
        return None
    return math.log(base.step_s / challenger.step_s)
