"""The training loop for overhead.py: a small perceptron with a DataLoader, whose step takes about 1 or 5 ms."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from statistics import mean, median

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Number of steps at the start of an instrument's block that are not timed. After these steps the seams are in their
# normal state, and the second search for modules is finished.
WARM = 96
REST = 4  # Number of steps that are not timed in a block without an instrument
# A step longer than this multiple of the median of its block is left out, because another process had the core.
OUTLIER = 2.0
WIDTHS = {1.0: 192, 5.0: 640}  # Widths by the step's length in ms, found by hand on the machine that the results name


class Loop:
    """A model with its data, on which blocks of steps run."""

    def __init__(self, step_ms: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        torch.manual_seed(0)
        torch.set_num_threads(1)  # Two threads at a barrier would add more noise than an instrument costs.
        width = WIDTHS[step_ms]
        self.data = TensorDataset(torch.randn(4096, width), torch.randint(0, 10, (4096,)))
        layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())]
        self.model = nn.Sequential(*layers, nn.Linear(width, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.loader = DataLoader(self.data, batch_size=32, shuffle=True)

    def block(
        self,
        num_steps: int,
        num_warm: int = WARM,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
        after: Callable[[], object] | None = None,
    ) -> float:
        """Runs a block and returns the seconds per step. `around` wraps each step, and `after` is called after it."""
        stamps: list[float] = []
        batches = itertools.chain.from_iterable(itertools.repeat(self.loader))
        for _ in range(num_warm + num_steps):
            x, y = next(batches)
            with around():
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
            if after is not None:
                after()
            stamps.append(self.clock())
        timings = [late - early for early, late in pairwise(stamps[num_warm - 1 :])]
        most = OUTLIER * median(timings)
        return mean(timing for timing in timings if timing < most)
