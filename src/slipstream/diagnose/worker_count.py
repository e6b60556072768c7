"""Recommends a number of workers for a loader on this machine, and says what a user must consider first."""

from __future__ import annotations

import math

from slipstream.diagnose.epoch_invariance import draws
from slipstream.diagnose.input_path import InputPath, batch_bytes, step_after
from slipstream.numbers import in_bytes
from slipstream.records import Loader, Session, Summary

MOST_WORKERS = 16
PREFETCHED = 2  # Finished batches that a worker holds


def best_num_workers(session: Session, summary: Summary, path: InputPath) -> int:
    """The smallest number of workers whose predicted step is within 3% of the best prediction.

    0 if no number of workers makes the step shorter.
    """
    steps = {n: step_after(session, summary, path, num_workers=n) for n in range(1, _most(session, path) + 1)}
    best_ms = min(steps.values(), default=summary.step_ms)
    if best_ms >= summary.step_ms:
        return 0
    return min(n for n, then_ms in steps.items() if then_ms <= 1.03 * best_ms)


def _most(session: Session, path: InputPath) -> int:
    """The largest useful number of workers.

    If workers mostly wait, twice as many workers as cores are useful. If they compute, more workers than cores gain
    nothing.
    """
    cores = max(1, math.floor(session.environment.num_usable + 0.25))
    most = 2 * cores if path.waits > 0.5 else cores
    return max(1, min(most, MOST_WORKERS, _fitting(session, path.loader)))


def _fitting(session: Session, loader: Loader) -> int:
    """The number of workers whose finished batches fit into half of /dev/shm."""
    free, num_bytes = session.environment.shm_free_bytes, batch_bytes(loader)
    return MOST_WORKERS if free is None or num_bytes == 0 else int(free / 2 / (num_bytes * PREFETCHED))


def worker_advice(session: Session, loader: Loader, workers: int) -> str:
    sentences: list[str] = []
    if _fitting(session, loader) < workers:
        free, needed = (
            in_bytes(session.environment.shm_free_bytes or 0),
            in_bytes(batch_bytes(loader) * PREFETCHED * workers * 2),
        )
        sentences.append(f"/dev/shm has only {free} free: give the container about {needed} first (--shm-size).")
    if loader.is_iterable and workers == 1:
        sentences.append("One worker reads the data as before; more would have to share it (get_worker_info).")
    elif loader.is_iterable:
        sentences.append(
            "An iterable dataset must share its data among workers (get_worker_info), or each worker repeats the data."
        )
    elif loader.num_workers == 0 and draws(session, loader) is not False:
        sentences.append("Random augmentations will draw other numbers than before.")
    return " ".join(sentences)
