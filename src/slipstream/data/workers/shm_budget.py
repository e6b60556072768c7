"""How many batches may be held at once, given the free space in /dev/shm and in memory. This is a pure function of
records."""

from __future__ import annotations

from slipstream.records import Environment, Loader

# Maximum share of the free space in /dev/shm. Other programs use /dev/shm too. Workers die with a bus error when it is
# full.
SHM_SHARE = 0.5
MEMORY_SHARE = 0.25  # of the machine's memory or of its limit
# Batches of a worker beyond the prefetched ones: one is being built, the script uses one, and one is being released.
SPARE = 3
ENDLESS = 1_000_000


def num_batches_held(environment: Environment, loader: Loader) -> int:
    """Returns how many batches all workers together may hold at once. A batch is held from its construction in a worker
    until the script releases the batch."""
    batch_bytes = sum(facts.num_bytes for facts in loader.tensor_facts)
    if batch_bytes <= 0:
        return ENDLESS
    limits = [MEMORY_SHARE * min(environment.memory_bytes, environment.memory_limit_bytes or environment.memory_bytes)]
    if environment.shm_free_bytes is not None:
        limits.append(SHM_SHARE * environment.shm_free_bytes)
    return int(min(limits) / batch_bytes)
