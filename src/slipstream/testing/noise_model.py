"""The noise of a machine, for simulated backends: recorded step times played back from a random position, with added
drift, autocorrelation and outliers. It affects whichever trial holds the baton and does not depend on recipes.
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
    """Step times of one machine in order, as multiples of the usual step. Many noises share one recording."""

    def __init__(self, factors: Sequence[float]) -> None:
        self.factors = list(factors)

    @classmethod
    def read(cls, path: Path, name: str = "laps") -> NoiseRecording:
        """Reads a file of benchmarks/record_noise.py.

        Each trial's times are divided by their own median, so that only the noise of the machine remains, and not the
        speed of the process.
        """
        timings: list[tuple[int, list[float]]] = json.loads(path.read_text())[name]
        usual = {trial: median(ms for who, times in timings if who == trial for ms in times) for trial, _ in timings}
        return cls([ms / usual[trial] for trial, times in timings for ms in times])


class NoiseModel(msgspec.Struct, frozen=True):
    """Sizes of the noise that is added to the recording, or that is used alone without one."""

    spread: float = 0.03  # sigma of a block's log time
    correlation: float = 0.5  # of the noise of one block with that of the next, whichever trial runs
    drift: float = 0.003  # sigma of the random walk of the machine's speed, per block
    outlier_share: float = 0.02  # share of blocks that something else disturbs
    outlier_size: float = 0.5  # factor by which a disturbed block is longer


CALM = NoiseModel(spread=0.0, drift=0.0, outlier_share=0.0)


class Noise:
    """Blocks request their factors in the order of time. Noise of one block partly carries over to the next, even of
    another trial.
    """

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
        """How much longer than usual each next step of a new block takes, without end."""
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
