"""The time of a tuning, measured with the backend's clock: the budget, the costs of the phases, and how many arms can
be raced in a given time."""

from __future__ import annotations

import math

from slipstream.diagnose.statistics import median
from slipstream.tuning.successive_halving import LEAST_ROUNDS, rung_sizes
from slipstream.wire.backend import RaceBackend

# Share of the budget that is reserved for the proof, because the proof decides whether anything is kept.
PROOF_SHARE = 0.4
# Time that was lost to other programs is added to the budget. A default budget at most doubles. A tuning may take 20%
# longer than a budget that the user named. Lost time adds at most half of these 20%. The last pair and the end of
# trials need the rest.
MOST_EXTENSION, MOST_NAMED_EXTENSION = 1.0, 0.1
MOST_LATE = 1.25  # a default budget may grow to this many times the announced one, not counting lost time
USUAL_PAIRS = 20  # pairs in a default budget; they prove a gain of 1.2 times the spread of the pairs
USUAL_PASSES = 2  # passes in a default budget; the second one has half of the arms, and further ones use leftover time
USUAL_ROUNDS = 6  # rounds of the first rung in a default budget; a tuning that finds large gains needs no more
# The fewest and the most rounds of a pair. With fewer rounds a single outlier decides the result of the pair. More
# rounds of the same two processes show nothing new.
PAIR_ROUNDS, MOST_PAIR_ROUNDS = 4, 64
BLOCKS_PER_START = 3.0  # seconds of blocks for each second of starts in a pair; blocks mostly vary more than processes
# A control of the numerics check takes as long as this many usual starts, because the warm-up with rounding noise takes
# about three times as long as without it.
CONTROL_STARTS = 2.0
SLOW_START_S = 60.0  # the longest usual first start of a compiled model on two cores; other devices are faster
LONG_BLOCK_S = 1.0  # with longer blocks a default budget has time for only the fewest rounds of the first rung
SHORTEST_S, LONGEST_S = 60.0, 3600.0  # limits of a default budget


class Budget:
    def __init__(self, backend: RaceBackend, budget_s: float | None) -> None:
        self._backend = backend
        self._start_s = backend.now_s()
        self._is_named = budget_s is not None
        self._given_s = budget_s or SHORTEST_S
        self._announced_s = 0.0  # 0.0: no default budget was announced
        self._lost_s = 0.0
        self._kept_back_s: float | None = None  # seconds that are reserved for the proof

    def now_s(self) -> float:
        return self._backend.now_s()

    @property
    def budget_s(self) -> float:
        if self._is_named:
            return self._given_s + min(self._lost_s, MOST_NAMED_EXTENSION * self._given_s)
        announced_s = self._announced_s or self._given_s
        return min(self._given_s + self._lost_s, (1.0 + MOST_EXTENSION) * announced_s)

    def follow(self, costs: Costs, num_arms: int, num_slow: int = 0, num_controls: int = 0) -> bool:
        """Sets the default budget of a script, unless the user named a budget. Returns whether it was set."""
        if not self._is_named:
            self._given_s = self._announced_s = round_up(
                self.spent_s() + costs.whole_s(num_arms, num_slow) + num_controls * costs.control_s()
            )
        return not self._is_named

    def extend(self, seconds: float) -> None:
        """Lets a default budget grow until `seconds` are left, within its limit. Starts and steps may have become
        slower since the budget was announced, or a proof may have shown that another selection is needed."""
        if not self._is_named and self._announced_s:
            wanted_s = self.spent_s() - self._lost_s + seconds
            self._given_s = min(max(self._given_s, wanted_s), MOST_LATE * self._announced_s)

    def lose(self, seconds: float) -> None:
        """Records that these seconds were lost to other programs."""
        self._lost_s += seconds

    def spent_s(self) -> float:
        return self.now_s() - self._start_s

    def left_s(self) -> float:
        return max(0.0, self.budget_s - self.spent_s())

    def end_s(self, kept_back: float = 0.0) -> float:
        """Returns the time at which the share `kept_back` of the budget is left. If the share is negative, this time is
        after the end of the budget."""
        return self._start_s + self.budget_s * (1.0 - kept_back)

    def begin_selection(self) -> None:
        """Reserves a share of the time that is left for the proof of the recipe that this selection finds."""
        self._kept_back_s = PROOF_SHARE * self.left_s()

    def selection_end_s(self) -> float:
        kept_back_s = PROOF_SHARE * self.budget_s if self._kept_back_s is None else self._kept_back_s
        return self.end_s() - kept_back_s


class Costs:
    """The durations of starts and blocks, as measured so far."""

    def __init__(self, step_s: float, block: tuple[int, int]) -> None:
        self._step_s = step_s  # the step time in the check
        self._block = block  # numbers of timed steps and of lead-in steps
        self._anchor_start_s = 0.0
        self._starts_s: list[float] = []
        self._cold_starts_s: list[float] = []
        self._blocks_s: list[float] = []

    def started(self, seconds: float, is_cold: bool = False) -> None:
        (self._cold_starts_s if is_cold else self._starts_s).append(seconds)

    def built_on(self, start_s: float) -> None:
        """Sets the start-up time of the recipe so far. All later arms contain this recipe, so they take at least as
        long to start."""
        self._anchor_start_s = start_s

    def blocked(self, seconds: float) -> None:
        self._blocks_s.append(seconds)

    def start_s(self) -> float:
        """Returns the typical duration of a start, which is at least the start-up time of the recipe so far. The first
        start counts only if there is no other, because the first start also fills shared caches."""
        return max(self._anchor_start_s, median(self._starts_s[1:] or self._starts_s or [0.0]))

    def cold_start_s(self) -> float:
        return median(self._cold_starts_s) if self._cold_starts_s else max(self._starts_s, default=0.0)

    def control_s(self) -> float:
        return CONTROL_STARTS * self.start_s()

    def block_s(self) -> float:
        return median(self._blocks_s[-9:]) if self._blocks_s else sum(self._block) * self._step_s

    def race_s(self, num_trials: int, num_rounds: int) -> float:
        return num_trials * (self.start_s() + num_rounds * self.block_s())

    def pass_s(self, num_arms: int, num_fixed: int, first_rounds: int = LEAST_ROUNDS) -> float:
        """Returns the duration of one pass of successive halving. `num_fixed` trials run beside the arms of every
        rung."""
        return sum(self.race_s(size + num_fixed, rounds) for size, rounds in rung_sizes(num_arms, first_rounds))

    def num_affordable(self, seconds: float, num_fixed: int) -> int:
        """Returns how many arms a pass can have in the given time, at most 200."""
        number = 0
        while number < 200 and self.pass_s(number + 1, num_fixed) <= seconds:
            number += 1
        return number

    def pair_s(self) -> float:
        """Returns the duration of a usual pair of the proof: two starts and their blocks."""
        starts_s = 2 * self.cold_start_s()
        least_s, most_s = (2 * number * self.block_s() for number in (PAIR_ROUNDS, MOST_PAIR_ROUNDS))
        return starts_s + min(max(BLOCKS_PER_START * starts_s, least_s), most_s)

    def least_pair_s(self) -> float:
        """Returns the duration of a pair with as few rounds as possible."""
        return 2 * self.cold_start_s() + 2 * PAIR_ROUNDS * self.block_s()

    def whole_s(self, num_arms: int, num_slow: int = 0) -> float:
        """Returns the duration of a tuning that races all arms, has a second pass over half of them, and has a proof of
        the usual length. `num_slow` of the arms take long to start."""
        first_rounds = USUAL_ROUNDS if self.block_s() < LONG_BLOCK_S else LEAST_ROUNDS
        passes_s = sum(self.pass_s(math.ceil(num_arms / 2**number), 2, first_rounds) for number in range(USUAL_PASSES))
        passes_s += num_slow * SLOW_START_S
        return max(passes_s / (1.0 - PROOF_SHARE), passes_s + USUAL_PAIRS * self.pair_s())


def round_up(seconds: float) -> float:
    """Rounds up to half minutes, or above five minutes to whole minutes. The result lies between the shortest and the
    longest default budget."""
    step_s = 30.0 if seconds <= 300.0 else 60.0
    return min(max(math.ceil(seconds / step_s) * step_s, SHORTEST_S), LONGEST_S)
