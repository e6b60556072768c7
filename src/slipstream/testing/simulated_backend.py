"""A race backend without processes, for tests of code that uses a RaceBackend.

It has a clock of its own, trials with chosen true step times, and noise. It simulates the answers and not a machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from slipstream.records import BlockTiming, Failure, Fingerprint, Recipe, TechniqueNote, TrialRecord, TrialSpec
from slipstream.testing.made_fingerprints import made_fingerprint_of
from slipstream.testing.noise_model import CALM, Noise

Factor = Callable[[Recipe], float]  # The true step time under a recipe, relative to the base
Ageing = Callable[[Recipe, int], float]  # Factor on the step time after this number of steps
Fault = Callable[[TrialSpec, int], str]  # Reason why the trial failed after this number of steps, or ""
Seen = Callable[[TrialSpec, int], Fingerprint]  # The fingerprint after this number of steps
Load = Callable[[float], float]  # Threads of other programs that compute at this second of the backend's clock
Pace = Callable[[float], float]  # Factor on all times at this second of the backend's clock

NUM_CORES = 2  # Each trial uses all cores.
_SLICE_S = 0.5  # Longest interval between two readings of load and pace: half of the shortest burst of load


class SimulatedBackend:
    """A RaceBackend whose clock moves only while a trial starts or runs, and while `wait` waits."""

    def __init__(
        self,
        factor: Factor = lambda recipe: 1.0,
        step_s: float = 0.05,
        noise: Noise | None = None,
        seed: int = 0,
        startup_s: Callable[[Recipe], float] = lambda recipe: 4.0,
        beside: float = 0.0,  # Seconds of its own start that a trial completes in a second of another trial's start
        cold_start_s: Callable[[Recipe], float] | None = None,  # Start of trials that are not forked; None: `startup_s`
        lottery: float = 0.0,  # Sigma of the log of a process's constant speed factor
        shared_lottery: float = 0.0,  # Sigma of the log of a factor that all trials except cold ones share
        ageing: Ageing = lambda recipe, num_steps: 1.0,
        num_trials: int = 16,  # Number of trials that fit in memory
        num_steps: int | None = None,  # Number of steps after which the script ends
        batch_size: int = 32,
        fault: Fault = lambda spec, num_steps: "",
        fingerprint: Seen = made_fingerprint_of,
        peak_bytes: Callable[[Recipe], int] = lambda recipe: 2**30,
        load: Load = lambda now_s: 0.0,
        pace: Pace = lambda now_s: 1.0,
    ) -> None:
        self.num_timings = 0
        self.most_at_once = 0
        self._rng = random.Random(seed)
        self._factor = factor
        self._step_s = step_s
        self._noise = noise or Noise(self._rng, noise_model=CALM)
        self._startup_s = startup_s
        self._beside = beside
        self._cold_start_s = cold_start_s or startup_s
        self._lottery, self._shared_lottery = lottery, shared_lottery
        self._shared_luck = self._rng.gauss(0.0, shared_lottery)
        self._ageing = ageing
        self._capacity = num_trials
        self._length = num_steps
        self._batch_size = batch_size
        self._fault = fault
        self._fingerprint = fingerprint
        self._peak_bytes = peak_bytes
        self._load, self._pace = load, pace
        self._now_s = 0.0
        self._trials: dict[int, _SimulatedTrial] = {}
        self._present: set[int] = set()
        # The completed seconds of the starts of trials that start in parallel with the trial that enters
        self._ahead: dict[int, float] = {}

    def enter(self, spec: TrialSpec) -> Failure | None:
        assert spec.ident not in self._trials, f"trial {spec.ident} has entered before"
        if self._capacity > 1:
            assert len(self._present) < self._capacity, f"memory holds {self._capacity} trials and one more entered"
        trial = self._trials[spec.ident] = _SimulatedTrial(spec)
        trial.failure = self._failure(spec, 0)
        self._start(trial)
        if trial.failure:
            self._present.discard(spec.ident)
        return trial.failure

    def expect(self, spec: TrialSpec) -> None:
        """Starts the trial in parallel with the trial that enters next, as the real backend does.

        The first trial always starts alone.
        """
        num_starting = len(self._ahead) or 1
        if self._trials and num_starting == 1 and len(self._present) + 2 <= self._capacity:
            self._ahead[spec.ident] = 0.0

    def run_block(self, trial: int, round: int, num_steps: int, lead_in: int, limit_s: float = math.inf) -> BlockTiming:
        who = self._trials[trial]
        assert not who.failure and not who.is_over, f"trial {trial} is out and was asked for a block"
        self._ahead.clear()
        if trial not in self._present:
            assert self._capacity == 1, f"trial {trial} has left and was asked for a block"
            self._start(who)
        factors, block_start_s = self._noise.block(), self._now_s
        self._run_steps(who, factors, lead_in)
        first, start_s, foreign_s = who.num_steps, self._now_s, 0.0
        while who.num_steps < first + num_steps and not who.is_over:
            if who.num_steps > first and self._now_s - block_start_s > limit_s:
                break
            foreign_s += self._run_steps(who, factors, 1)
        who.failure = self._failure(who.spec, who.num_steps)
        if who.failure or who.is_over:
            self._present.discard(trial)
        self.num_timings += 1
        seconds, num_timed = self._now_s - start_s, who.num_steps - first
        timing = BlockTiming(
            trial=trial,
            round=round,
            first_step=first,
            num_steps=num_timed,
            seconds=seconds,
            time_ns=int(start_s * 1e9),
            num_samples=num_timed * self._batch_size,
            foreign_cores=foreign_s / seconds if seconds else None,
            is_last=who.is_over,
            failure=who.failure,
        )
        who.timings.append(timing)
        return timing

    def wait(self, seconds: float) -> float | None:
        end_s, foreign_s = self._now_s + seconds, 0.0
        while self._now_s < end_s:
            slice_s = min(_SLICE_S, end_s - self._now_s)
            foreign_s += slice_s * min(NUM_CORES, self._load(self._now_s))
            self._now_s += slice_s
        return foreign_s / seconds if seconds else None

    def record(self, trial: int) -> TrialRecord:
        who = self._trials[trial]
        return TrialRecord(
            spec=who.spec,
            timings=list(who.timings),
            fingerprint=self._fingerprint(who.spec, who.num_steps),
            startup_s=self._start_s(who.spec),
            peak_bytes=self._peak_bytes(who.spec.recipe),
            changes=[TechniqueNote(choice.technique, str(choice)) for choice in who.spec.recipe.choices],
            failure=who.failure,
        )

    def leave(self, trial: int) -> TrialRecord:
        self._present.discard(trial)
        self._trials[trial].is_over = True
        return self.record(trial)

    def capacity(self) -> int:
        return self._capacity

    def now_s(self) -> float:
        return self._now_s

    @property
    def specs(self) -> list[TrialSpec]:
        """The specs of all trials that have entered, in the order in which they entered."""
        return [trial.spec for trial in self._trials.values()]

    def _failure(self, spec: TrialSpec, num_steps: int) -> Failure | None:
        fault = self._fault(spec, num_steps)
        return Failure(fault) if fault else None

    def _run_steps(self, trial: _SimulatedTrial, factors: Iterator[float], num_steps: int) -> float:
        """Runs this number of steps, or fewer if the script ends. Returns the core seconds that other programs used."""
        step_s, foreign_s = self._step_s * self._factor(trial.spec.recipe) * trial.luck, 0.0
        for _ in range(num_steps):
            if trial.num_steps == self._length:
                trial.is_over = True
                break
            foreign_s += self._compute(step_s * self._ageing(trial.spec.recipe, trial.num_steps) * next(factors))
            trial.num_steps += 1
        return foreign_s

    def _compute(self, seconds: float) -> float:
        """Simulates work that takes these seconds on an idle machine. Returns the core seconds that other programs
        used.

        All threads that compute get equal shares of the cores.
        """
        foreign_s = 0.0
        while seconds > 0.0:
            slice_s = min(_SLICE_S, seconds)
            threads, took_s = self._load(self._now_s), slice_s * self._slowdown()
            foreign_s += took_s * NUM_CORES * threads / (NUM_CORES + threads)
            self._now_s += took_s
            seconds -= slice_s
        return foreign_s

    def _slowdown(self) -> float:
        return (1.0 + self._load(self._now_s) / NUM_CORES) * self._pace(self._now_s)

    def _start(self, trial: _SimulatedTrial) -> None:
        if self._capacity == 1:
            self._present.clear()  # Only one trial fits in memory, so the other trial ends.
        self._present.add(trial.spec.ident)
        self.most_at_once = max(self.most_at_once, len(self._present))
        start_s = max(0.0, self._start_s(trial.spec) - self._ahead.pop(trial.spec.ident, 0.0))
        for other in self._ahead:
            self._ahead[other] += self._beside * start_s
        self._compute(start_s)
        shared = self._rng.gauss(0.0, self._shared_lottery) if trial.spec.is_cold else self._shared_luck
        trial.luck = math.exp(shared + self._rng.gauss(0.0, self._lottery))

    def _start_s(self, spec: TrialSpec) -> float:
        return (self._cold_start_s if spec.is_cold else self._startup_s)(spec.recipe)


class _SimulatedTrial:
    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec
        self.luck = 1.0  # Factor on the step time of the running process
        self.num_steps = 0
        self.timings: list[BlockTiming] = []
        self.is_over = False
        self.failure: Failure | None = None


def choice_factors(**factors: float) -> Factor:
    """Returns a function that gives the step time relative to the base: the product of one factor for each technique.
    Settings do not matter.

    Techniques without a factor change nothing.
    """

    def factor(recipe: Recipe) -> float:
        return math.prod(factors.get(choice.technique, 1.0) for choice in recipe.choices)

    return factor
