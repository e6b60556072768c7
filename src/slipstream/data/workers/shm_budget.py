"""How many batches may be held ready at once, given the free space in /dev/shm and in memory. A pure function of
records."""

from __future__ import annotations

from slipstream.records import Environment, Loader

SHM_SHARE = 0.5  # of the free space: other programs use it too, and workers die with a bus error when it is full
MEMORY_SHARE = 0.25
SPARE = 3  # batches of a worker beyond those held ready: one being built, one in use by the script, one being released
ENDLESS = 1_000_000


def num_batches_held(environment: Environment, loader: Loader) -> int:
    """How many batches all workers together may have built ahead of their use."""
    batch_bytes = sum(facts.num_bytes for facts in loader.tensor_facts)
    if batch_bytes <= 0:
        return ENDLESS
    limits = [MEMORY_SHARE * min(environment.memory_bytes, environment.memory_limit_bytes or environment.memory_bytes)]
    if environment.shm_free_bytes is not None:
        limits.append(SHM_SHARE * environment.shm_free_bytes)
    return int(min(limits) / batch_bytes)
