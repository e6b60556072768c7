"""Runs a script as `__main__`, without slipstream, and times its steps and its waits for data.

Usage: `python public_watch.py RESULT SCRIPT [ARGUMENTS]`. RESULT is the JSON file to write. A step ends when the
optimizer that was called first has made an update. A wait is a call of a DataLoader's iterator while gradients are
recorded, so the waits of most evaluations do not count.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import runpy
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter


class Stopwatch:
    """Times the steps and the waits of this process. It does not write a result in forked workers."""

    def __init__(self, result: Path) -> None:
        self._result, self._process = result, os.getpid()
        self._steps: list[float] = []  # The ends of the steps
        self._waits: list[tuple[float, float]] = []  # The end and the seconds of each wait
        self._updates: Counter[int] = Counter()
        self._first: int | None = None

    def install(self) -> None:
        register_optimizer_step_post_hook(self._after_step)
        fetch = _BaseDataLoaderIter.__next__

        def timed_fetch(iterator: Any) -> Any:
            start = time.perf_counter()
            batch = fetch(iterator)
            end = time.perf_counter()
            if torch.is_grad_enabled():
                self._waits.append((end, end - start))
            return batch

        setattr(_BaseDataLoaderIter, "__next__", timed_fetch)  # noqa: B010  mypy forbids an assignment here.
        atexit.register(self._write)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._updates[id(optimizer)] += 1
        if self._first is None:
            self._first = id(optimizer)
        if id(optimizer) == self._first:
            self._steps.append(time.perf_counter())

    def _write(self) -> None:
        if os.getpid() == self._process:
            self._result.write_text(json.dumps(self._facts()))

    def _facts(self) -> dict[str, Any]:
        # The first tenth is left out, because the first steps are slower.
        steps = self._steps[len(self._steps) // 10 :]
        if len(steps) < 2:
            return {"num_steps": len(self._steps)}
        seconds = steps[-1] - steps[0]
        waits = [waited for end, waited in self._waits if steps[0] < end <= steps[-1]]
        return {
            "num_steps": len(self._steps),
            "step_ms": 1e3 * median(later - earlier for earlier, later in itertools.pairwise(steps)),
            "mean_step_ms": 1e3 * seconds / (len(steps) - 1),
            "num_batches": len(waits),
            "wait_ms": 1e3 * median(waits) if waits else 0.0,
            "wait_share": sum(waits) / seconds,
            "updates": list(self._updates.values()),
        }


def main() -> None:
    result, script = Path(sys.argv[1]).resolve(), sys.argv[2]
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).resolve().parent)
    Stopwatch(result).install()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
