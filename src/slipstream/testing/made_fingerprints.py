"""Synthetic fingerprints of trials, sound or with a planted fault, for tests of code that reads fingerprints.

Fingerprints of real trainings are tested in tests/verify/test_never_wrong.py.
"""

from __future__ import annotations

import math
import random
from functools import lru_cache

from slipstream.records import ROUNDOFF, Fingerprint, Sketch, Snapshot, TrialSpec

NUM_SNAPSHOTS = 3
SKETCH_SIZE = 16
PARAMETERS = {"conv.weight": 1.0, "fc.weight": 0.4, "fc.bias": 0.1}  # Names of parameters and norms of their gradients
TIMING_STEPS = 10


@lru_cache(maxsize=256)
def made_fingerprint(
    num_steps: int = 60,
    seed: int = 0,
    rounding: float = 0.0,  # Relative error of gradients and losses
    gradient_scale: float = 1.0,
    loss_shift: float = 0.0,  # This number is added to every loss from `from_step` on
    from_step: int = 0,  # The step at which the shift begins
    draw: int = 0,  # Another number gives other rounding errors of the same size
) -> Fingerprint:
    """Returns a fingerprint whose losses fall from 2.3.

    The same seed stands for the same batches. With `rounding`, losses and gradients are not bit-equal to the ones
    without rounding.
    """
    batches, jitter = random.Random(seed), random.Random(f"{seed} {rounding} {draw}")
    losses = []
    for step in range(num_steps):
        value = 2.3 * math.exp(-step / 100) + batches.gauss(0.0, 0.05)
        value *= 1.0 + rounding * jitter.gauss(0.0, 1.0)
        losses.append((step, value + (loss_shift if step >= from_step else 0.0)))
    state = f"{seed} {rounding} {gradient_scale} {loss_shift} {draw}"
    return Fingerprint(
        losses=losses,
        snapshots=[
            _snapshot(step, seed, rounding, gradient_scale, draw) for step in range(min(num_steps, NUM_SNAPSHOTS))
        ],
        digests=[(step, f"{state} {step}") for step in range(TIMING_STEPS, num_steps + 1, TIMING_STEPS)],
    )


def _snapshot(step: int, seed: int, rounding: float, scale: float, draw: int) -> Snapshot:
    draws, jitter = random.Random(f"{seed} {step}"), random.Random(f"{seed} {step} {rounding} {draw}")
    sketches = []
    for name, norm in PARAMETERS.items():
        raw = [draws.gauss(0.0, 1.0) for _ in range(SKETCH_SIZE)]
        unit = norm * scale / math.hypot(*raw)
        values = [unit * value + norm * scale * rounding * jitter.gauss(0.0, 1.0) / 4 for value in raw]
        sketches.append(Sketch(name, 1000, math.hypot(*values), values))
    return Snapshot(step, sketches)


def made_fingerprint_of(spec: TrialSpec, num_steps: int) -> Fingerprint:
    """Returns the fingerprint of a sound trial of this role. All roles have bit-equal fingerprints, except the controls
    with another seed or with rounding noise.
    """
    if spec.role == "seed":
        return made_fingerprint(num_steps, seed=1 + spec.draw)
    if spec.role == "rounding":
        return made_fingerprint(num_steps, rounding=ROUNDOFF[spec.precision], draw=spec.draw)
    return made_fingerprint(num_steps)
