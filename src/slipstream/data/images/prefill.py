"""Fills caches before a race. Forked processes read the samples of the next epoch from the dataset. The race then
measures an epoch with filled caches, like every epoch after the first. The script's process receives no sample, and the
states of its generators do not change."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler, SubsetRandomSampler

from slipstream.data.workers.worker_blockers import obstacle
from slipstream.seams.rng_state import RngState

DEADLINE_S = 45.0
_MOST_INDICES = 500_000
_POLL_S = 0.05


def upcoming_indices(loader: Any) -> Sequence[int]:
    """Returns the indices in the order of the epoch that begins now, if the samplers are torch's own. Otherwise returns
    the indices in the order of the dataset."""
    sampler = loader.sampler
    is_known = type(loader.batch_sampler) is BatchSampler or loader.batch_sampler is None
    if not is_known or type(sampler) not in (RandomSampler, SequentialSampler, SubsetRandomSampler):
        return range(len(loader.dataset))
    generators = [torch.default_generator, loader.generator, getattr(sampler, "generator", None)]
    before = RngState(generator for generator in generators if generator is not None)
    try:
        # Torch draws the seed of the epoch first.
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return list(itertools.islice(sampler, _MOST_INDICES))
    finally:
        before.restore()


def cannot_fill(loader: Any) -> str:
    """Returns the reason why samples of this loader cannot be read ahead, as a clause, or "" if they can."""
    if isinstance(loader.dataset, IterableDataset):
        return "an iterable dataset yields its samples one at a time"
    if "fork" not in multiprocessing.get_all_start_methods():
        return "processes cannot be forked here"
    return obstacle({"dataset": loader.dataset, "multiprocessing_context": "fork"}, 1)


def fill(
    loader: Any,
    maker: Callable[[], Callable[[int], Any]],
    is_over: Callable[[int], bool],
    deadline_s: float = DEADLINE_S,
    num_processes: int | None = None,
) -> float:
    """Reads the samples in forked processes. Returns the share of the samples that was read before the deadline. Each
    process calls `maker` to get the function that reads a sample. After each sample, the process calls `is_over` with
    the number of samples that it has read. It stops if `is_over` returns True."""
    indices = upcoming_indices(loader)
    if not indices:
        return 1.0
    count = min(num_processes or len(os.sched_getaffinity(0)), len(indices))
    context = multiprocessing.get_context("fork")
    end_s = time.monotonic() + deadline_s
    done = context.Array("q", count, lock=False)
    children = [
        context.Process(target=_make, args=(maker, indices, at, done, is_over, end_s), daemon=True)
        for at in range(count)
    ]
    for child in children:
        child.start()
    try:
        while any(child.is_alive() for child in children) and time.monotonic() < end_s + 1.0:
            time.sleep(_POLL_S)
    finally:
        for child in children:
            child.kill()
            child.join()
    return float(sum(done) / len(indices))


def _make(maker: Any, indices: Sequence[int], at: int, done: Any, is_over: Callable[[int], bool], end_s: float) -> None:
    torch.set_num_threads(1)
    make = maker()
    for index in itertools.islice(indices, at, None, len(done)):
        with contextlib.suppress(Exception):  # the script gets the exception when it reads the sample itself
            make(index)
        done[at] += 1
        if is_over(done[at]) or time.monotonic() > end_s:
            return
