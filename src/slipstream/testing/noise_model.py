"""The noise of a machine, for simulated backends. Recorded step times are replayed from a random position. Drift,
autocorrelated noise and outliers are added. The noise affects the trial that holds the baton and does not depend on
recipes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec


class NoiseRecording:
    """Step times of one machine in order, as multiples of the usual step. Many `Noise` objects share one recording."""

    def __init__(self, factors: Sequence[float]) -> None:
        self.factors = list(factors)

    @classmethod
    def read(cls, path: Path, name: str = "laps") -> NoiseRecording:
        """Reads a file that benchmarks/record_noise.py has written.

        Each trial's times are divided by their own median. This removes the speed of the process, and only the noise of
        the machine remains.
        """
        timings: list[tuple[int, list[float]]] = json.loads(path.read_text())[name]
        usual = {trial: median(ms for who, times in timings if who == trial for ms in times) for trial, _ in timings}
        return cls([ms / usual[trial] for trial, times in timings for ms in times])


class NoiseModel(msgspec.Struct, frozen=True):
    """The size of the noise that is added to a recording, or that is used without a recording."""

    spread: float = 0.03  # Sigma of the log of a block's time
    correlation: float = 0.5  # Correlation of the noise of one block and the next one, even of another trial
    drift: float = 0.003  # Sigma of the random walk of the log of the machine's speed, per block
    outlier_share: float = 0.02  # Share of the blocks that are disturbed
    outlier_size: float = 0.5  # Additional time of a disturbed block, as a share of its time


CALM = NoiseModel(spread=0.0, drift=0.0, outlier_share=0.0)


class Noise:
    """The factors on the step times of blocks. Call `block` for the blocks of all trials in the order of time."""

    def __init__(
        self, rng: random.Random, recording: NoiseRecording | None = None, noise_model: NoiseModel | None = None
    ) -> None:
        self._rng = rng
        self._recorded = recording.factors if recording is not None else [1.0]
        self._noise_model = noise_model or NoiseModel()
        self._at = rng.randrange(len(self._recorded))
        self._gust = rng.gauss(0.0, self._noise_model.spread)
        self._level = 0.0

    def block(self) -> Iterator[float]:
        """Begins a new block. Yields without end the factor on the time of each next step of this block."""
        noise_model, rng = self._noise_model, self._rng
        self._level += rng.gauss(0.0, noise_model.drift)
        fresh = math.sqrt(1.0 - noise_model.correlation**2) * rng.gauss(0.0, noise_model.spread)
        self._gust = noise_model.correlation * self._gust + fresh
        factor = math.exp(self._level + self._gust)
        if rng.random() < noise_model.outlier_share:
            factor *= 1.0 + noise_model.outlier_size
        while True:
            self._at = (self._at + 1) % len(self._recorded)
            yield factor * self._recorded[self._at]
