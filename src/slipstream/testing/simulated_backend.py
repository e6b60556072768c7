"""A race backend without processes: with its own clock, trials whose true step times are chosen, and noise.

For tests of code that uses a RaceBackend. It simulates the answers and not a machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from slipstream.records import BlockTiming, Failure, Fingerprint, Recipe, TechniqueNote, TrialRecord, TrialSpec
from slipstream.testing.made_fingerprints import made_fingerprint_of
from slipstream.testing.noise_model import CALM, Noise

Factor = Callable[[Recipe], float]  # the true step time under a recipe, relative to the base
Ageing = Callable[[Recipe, int], float]  # factor on the step time after so many steps
Fault = Callable[[TrialSpec, int], str]  # after so many steps: why the trial failed, or ""
Seen = Callable[[TrialSpec, int], Fingerprint]  # the fingerprint after so many steps
Load = Callable[[float], float]  # factor on times at that second of the backend's clock, relative to an idle machine


class SimulatedBackend:
    """Time passes only while a trial starts or runs."""

    def __init__(
        self,
        factor: Factor = lambda recipe: 1.0,
        step_s: float = 0.05,
        noise: Noise | None = None,
        seed: int = 0,
        startup_s: Callable[[Recipe], float] = lambda recipe: 4.0,
        beside: float = 0.0,  # share of its start that a trial completes while another one starts
        lottery: float = 0.0,  # sigma of the log of a process's constant speed factor
        ageing: Ageing = lambda recipe, num_steps: 1.0,
        num_trials: int = 16,  # trials that fit in memory
        num_steps: int | None = None,  # until the script ends
        batch_size: int = 32,
        fault: Fault = lambda spec, num_steps: "",
        fingerprint: Seen = made_fingerprint_of,
        peak_bytes: Callable[[Recipe], int] = lambda recipe: 2**30,
        load: Load = lambda now_s: 1.0,  # of other programs
    ) -> None:
        self.num_timings = 0
        self.most_at_once = 0
        self._rng = random.Random(seed)
        self._factor = factor
        self._step_s = step_s
        self._noise = noise or Noise(self._rng, noise_model=CALM)
        self._startup_s = startup_s
        self._beside = beside
        self._lottery = lottery
        self._ageing = ageing
        self._capacity = num_trials
        self._length = num_steps
        self._batch_size = batch_size
        self._fault = fault
        self._fingerprint = fingerprint
        self._peak_bytes = peak_bytes
        self._load = load
        self._now_s = 0.0
        self._trials: dict[int, _SimulatedTrial] = {}
        self._present: set[int] = set()
        # Trials that start in parallel with the one that enters: completed seconds of their start.
        self._ahead: dict[int, float] = {}

    def enter(self, spec: TrialSpec) -> Failure | None:
        assert spec.ident not in self._trials, f"trial {spec.ident} has entered before"
        if self._capacity > 1:
            assert len(self._present) < self._capacity, f"memory holds {self._capacity} trials and one more entered"
        luck = math.exp(self._rng.gauss(0.0, self._lottery))
        true_step_s = self._step_s * self._factor(spec.recipe) * luck
        trial = self._trials[spec.ident] = _SimulatedTrial(spec, true_step_s)
        trial.failure = self._failure(spec, 0)
        self._start(trial)
        if trial.failure:
            self._present.discard(spec.ident)
        return trial.failure

    def expect(self, spec: TrialSpec) -> None:
        """The trial starts in parallel with the one that enters now, as in the real backend. No trial starts beside the
        first.
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
        step_s = who.step_s * self._ageing(who.spec.recipe, who.num_steps + lead_in) * self._load(self._now_s)
        if math.isfinite(limit_s):
            most_steps = math.ceil(limit_s / step_s)
            lead_in = min(lead_in, most_steps) if step_s <= limit_s else 0
            num_steps = min(num_steps, max(1, most_steps - lead_in))
        first = who.num_steps + lead_in
        left = num_steps + lead_in if self._length is None else self._length - who.num_steps
        ridden = max(0, min(num_steps, left - lead_in))
        self._now_s += lead_in * step_s * self._noise.factor(lead_in)
        began_s, seconds = self._now_s, step_s * self._noise.factor(num_steps)
        self._now_s += seconds * ridden
        who.num_steps += min(lead_in + num_steps, left)
        who.failure = self._failure(who.spec, who.num_steps)
        who.is_over = left < lead_in + num_steps
        if who.failure or who.is_over:
            self._present.discard(trial)
        self.num_timings += 1
        timing = BlockTiming(
            trial=trial,
            round=round,
            first_step=first,
            num_steps=ridden,
            seconds=seconds * ridden,
            time_ns=int(began_s * 1e9),
            num_samples=ridden * self._batch_size,
            is_last=who.is_over,
            failure=who.failure,
        )
        who.timings.append(timing)
        return timing

    def record(self, trial: int) -> TrialRecord:
        who = self._trials[trial]
        return TrialRecord(
            spec=who.spec,
            timings=list(who.timings),
            fingerprint=self._fingerprint(who.spec, who.num_steps),
            startup_s=self._startup_s(who.spec.recipe),
            peak_bytes=self._peak_bytes(who.spec.recipe),
            changes=[TechniqueNote(choice.technique, str(choice)) for choice in who.spec.recipe.choices],
            failure=who.failure,
        )

    def leave(self, trial: int) -> TrialRecord:
        self._present.discard(trial)
        self._trials[trial].is_over = True
        return self.record(trial)

    def wait(self, seconds: float) -> float | None:
        self._now_s += seconds
        return None

    def capacity(self) -> int:
        return self._capacity

    def now_s(self) -> float:
        return self._now_s

    @property
    def specs(self) -> list[TrialSpec]:
        """All trials that ever entered, in order."""
        return [trial.spec for trial in self._trials.values()]

    def _failure(self, spec: TrialSpec, num_steps: int) -> Failure | None:
        fault = self._fault(spec, num_steps)
        return Failure(fault) if fault else None

    def _start(self, trial: _SimulatedTrial) -> None:
        if self._capacity == 1:
            self._present.clear()  # trials are restarted, so that only one runs at a time
        self._present.add(trial.spec.ident)
        self.most_at_once = max(self.most_at_once, len(self._present))
        startup_s = self._startup_s(trial.spec.recipe)
        startup_s = max(0.0, startup_s - self._ahead.pop(trial.spec.ident, 0.0))
        for other in self._ahead:
            self._ahead[other] += self._beside * startup_s
        self._now_s += startup_s


class _SimulatedTrial:
    def __init__(self, spec: TrialSpec, step_s: float) -> None:
        self.spec = spec
        self.step_s = step_s
        self.num_steps = 0
        self.timings: list[BlockTiming] = []
        self.is_over = False
        self.failure: Failure | None = None


def choice_factors(**factors: float) -> Factor:
    """Techniques by name that multiply the step, whatever their setting. All others change nothing."""

    def factor(recipe: Recipe) -> float:
        return math.prod(factors.get(choice.technique, 1.0) for choice in recipe.choices)

    return factor
