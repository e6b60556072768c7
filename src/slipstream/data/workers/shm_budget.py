"""How many batches may be held ready at once: what /dev/shm and memory leave. Pure; reads records."""

from __future__ import annotations

from slipstream.records import Environment, Loader

SHM_SHARE = 0.5  # of what is free: others use it too, and a full one kills workers with a bus error
MEMORY_SHARE = 0.25
SPARE = 3  # batches that a worker keeps beyond those held ready: being built, with the script, about to be let go
ENDLESS = 1_000_000


def num_batches_held(environment: Environment, loader: Loader) -> int:
    """Batches built and not yet used, of all workers together."""
    batch_bytes = sum(facts.num_bytes for facts in loader.tensor_facts)
    if batch_bytes <= 0:
        return ENDLESS
    limits = [MEMORY_SHARE * min(environment.memory_bytes, environment.memory_limit_bytes or environment.memory_bytes)]
    if environment.shm_free_bytes is not None:
        limits.append(SHM_SHARE * environment.shm_free_bytes)
    return int(min(limits) / batch_bytes)
