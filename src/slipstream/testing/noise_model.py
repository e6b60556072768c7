"""What a machine does to whoever holds the baton, for simulated tracks: recorded step times played back from a random
place, and on top of them drift, autocorrelation and outliers. Knows nothing of recipes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median

import msgspec


class NoiseRecording:
    """Step times of one machine in the order of time, as multiples of the usual step. Shared by many noises."""

    def __init__(self, factors: Sequence[float]) -> None:
        self.num_steps = len(factors)
        self._sums = [0.0, *accumulate([*factors, *factors])]  # twice round, so that no stretch needs splitting

    def mean(self, at: int, num_steps: int) -> float:
        """Of a stretch of steps; stretches longer than the recording take all of it."""
        at %= self.num_steps
        num_steps = min(num_steps, self.num_steps)
        return (self._sums[at + num_steps] - self._sums[at]) / num_steps

    @classmethod
    def read(cls, path: Path, name: str = "laps") -> NoiseRecording:
        """As benchmarks/record_noise.py wrote it. Each rider's times are divided by their own median, so that what
        remains is the machine's doing and not the process's."""
        timings: list[tuple[int, list[float]]] = json.loads(path.read_text())[name]
        usual = {trial: median(ms for who, times in timings if who == trial for ms in times) for trial, _ in timings}
        return cls([ms / usual[trial] for trial, times in timings for ms in times])


class NoiseModel(msgspec.Struct, frozen=True):
    """Sizes of what is added to the recording; without a recording they are all there is."""

    spread: float = 0.03  # sigma of a block's log time
    correlation: float = 0.5  # of one block's noise with the next one's, whoever rides
    drift: float = 0.003  # sigma of the walk of the machine's speed, each block
    outlier_share: float = 0.02  # of blocks that something else gets in the way of
    outlier_size: float = 0.5  # and makes longer by so much


CALM = NoiseModel(spread=0.0, drift=0.0, outlier_share=0.0)


class Noise:
    """Blocks ask for their factor in the order of time: what hits one block half hits the next, another rider's too."""

    def __init__(
        self, rng: random.Random, recording: NoiseRecording | None = None, noise_model: NoiseModel | None = None
    ) -> None:
        self._rng = rng
        self._recording = recording
        self._noise_model = noise_model or NoiseModel()
        self._at = rng.randrange(recording.num_steps) if recording is not None else 0
        self._gust = rng.gauss(0.0, self._noise_model.spread)
        self._level = 0.0

    def factor(self, num_steps: int) -> float:
        """How much longer than usual the next steps take."""
        noise_model, rng = self._noise_model, self._rng
        self._level += rng.gauss(0.0, noise_model.drift)
        fresh = math.sqrt(1.0 - noise_model.correlation**2) * rng.gauss(0.0, noise_model.spread)
        self._gust = noise_model.correlation * self._gust + fresh
        factor = math.exp(self._level + self._gust)
        if self._recording is not None:
            factor *= self._recording.mean(self._at, num_steps)
            self._at += num_steps
        if rng.random() < noise_model.outlier_share:
            factor *= 1.0 + noise_model.outlier_size
        return factor
