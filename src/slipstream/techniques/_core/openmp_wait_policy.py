"""Makes the OpenMP threads of the step sleep while they wait for each other. By default they wait in a busy loop, which
takes cores from the workers or threads that build batches."""

from __future__ import annotations

import os

CORES_PER_BUILDER = 4  # With more cores per worker or thread, busy loops do not slow down the workers.


def wait_policy(num_builders: int) -> dict[str, str]:
    """Returns the environment variables for this number of workers or threads. Returns none if there are cores enough,
    or if the user has set the wait policy. OpenMP reads the variables when it is loaded. The variables change how
    threads wait and not what threads compute, so results stay identical bit for bit."""
    is_set = any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"))
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    is_crowded = num_cores is not None and CORES_PER_BUILDER * num_builders >= num_cores
    return {"OMP_WAIT_POLICY": "PASSIVE"} if num_builders and is_crowded and not is_set else {}
