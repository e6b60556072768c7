"""Variables by which the step's own threads wait for each other asleep, and not in a busy loop that takes the cores
from whoever builds batches."""

from __future__ import annotations

import os

CROWDED = 4  # builders times this reach the number of cores: threads that spin are in their way


def patience(num_builders: int) -> dict[str, str]:
    """Read by OpenMP when it is loaded. The same threads do the same work: no bit changes."""
    is_set = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"))
    is_crowded = CROWDED * num_builders >= len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else False
    return {"OMP_WAIT_POLICY": "PASSIVE"} if num_builders and is_crowded and not is_set else {}
