"""Environment variables that make the step's OpenMP threads sleep while they wait for each other. A busy loop would
take the cores from the workers that build batches."""

from __future__ import annotations

import os

CROWDED = 4  # if builders times this reach the number of cores, spinning threads slow them down


def wait_policy(num_builders: int) -> dict[str, str]:
    """Returns the variables, which OpenMP reads when it is loaded. The same threads do the same work, so no bit
    changes."""
    is_set = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"))
    is_crowded = CROWDED * num_builders >= len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else False
    return {"OMP_WAIT_POLICY": "PASSIVE"} if num_builders and is_crowded and not is_set else {}
