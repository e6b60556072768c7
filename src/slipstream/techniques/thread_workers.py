"""Builds batches in threads of the training process. `tune` tries several numbers of threads, at most one per core.

Helps where batches are made by code that releases Python's GIL (decoding, resizing, reading files) and are so large
that passing them between processes takes long. Hurts where Python code makes the samples, and where the step consists
of many small operations, because threads and step then wait for the same GIL.

The script's loader and the order of its samples stay the same. Each thread reads from its own copy of the dataset,
which is made as for a spawned worker. Objects with state are copied. Large arrays, functions and locks are shared. The
technique declines if a dataset cannot be copied in this way, for example because it holds an open file or a connection.

Random augmentations draw the numbers that the same number of worker processes would draw. A script that already has
that many workers therefore sees no change. Without random numbers in the dataset, batches are bit-identical to those of
worker processes, because each thread computes with one core, as a worker does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from slipstream.data.workers.shm_budget import num_batches_held
from slipstream.numbers import in_ms, in_percent, plural
from slipstream.records import Edit, Loader, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.openmp_wait_policy import wait_policy
from slipstream.techniques._core.source_edits import loader_edits, where

if TYPE_CHECKING:
    from slipstream.data.threads.install import Threads
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Threads for the loader",
    seam="loader",
    causes=("no_workers", "slow_decode", "slow_read", "slow_transform", "heavy_handover", "worker_restart"),
    numerics="redrawn",
    work="spread",
    memory="more",
    # Threads replace worker processes, and sample_cache and byte_transfer work in worker processes only.
    claims=("loader.num_workers", "loader.persistent_workers", "samples.kept", "batch.bytes"),
)
VALUES = range(1, 257)
HELD = 2  # Batches that are held for each thread
LEAST_SHARE = 0.02  # Minimum share of input in the step. With a smaller share, threads gain nothing.
MOST_PYTHON = 0.5  # Maximum share of Python code in the work on a batch. Threads cannot run it in parallel.


def applies(observation: Observation) -> Answer:
    loader, summary = observation.loader, observation.summary
    if loader is None:
        return no("the script has no DataLoader")
    if loader.num_threads:
        return already(f"{plural(loader.num_threads, 'thread')} of slipstream.DataLoader build the batches")
    if loader.is_iterable:
        return no("an iterable dataset gives its samples one by one, so threads cannot share the work")
    on_device = next((facts.device for facts in loader.tensor_facts if facts.device != "cpu"), None)
    if on_device is not None:
        return no(f"the dataset makes its tensors on {on_device}")
    if not settings(observation):
        return no(_why_none(loader))
    if loader.num_workers == 0 and summary is not None and summary.step_ms > 0:
        input_ms = summary.phases.get("input", 0.0)
        if input_ms < LEAST_SHARE * summary.step_ms:
            return no(f"input takes only {in_ms(input_ms)} of a step of {in_ms(summary.step_ms)}")
    python = _python_share(observation)
    if python > MOST_PYTHON:
        return no(f"{in_percent(python)} of the work on a batch is Python code, which threads cannot run in parallel")
    return YES


def _why_none(loader: Loader) -> str:
    if loader.num_batches is not None and loader.num_batches < HELD:
        return f"an epoch has only {plural(loader.num_batches, 'batch', 'es')}"
    return "memory has no room for the batches of a thread"


def _python_share(observation: Observation) -> float:
    """Returns the share of Python code in the work on a batch, or 0.0 if too few stacks were sampled."""
    from slipstream.diagnose.hotspots import FEWEST_SAMPLES, total  # Imported here because `run` does not need it.
    from slipstream.diagnose.input_path import input_path
    from slipstream.diagnose.stack_facts import mistaken_share, python_share

    summary = observation.summary
    path = input_path(observation.session, summary) if summary is not None else None
    if path is None or total(path.stacks) < FEWEST_SAMPLES:
        return 0.0
    return python_share(path.stacks, mistaken_share(observation.session))


def settings(observation: Observation) -> list[Setting]:
    """Returns numbers of threads: the number of workers that the diagnosis predicts, the powers of two and the maximum.
    The numbers that are nearest to the prediction come first."""
    loader = observation.loader
    if loader is None:
        return []
    most = _most(observation, loader)
    guess = min(max(1, most), _guess(observation))
    counts = {count for count in (guess, *(2**power for power in range(8)), most) if 1 <= count <= most}
    return [*sorted(counts, key=lambda count: (abs(math.log2(count / guess)), -count))]


def _most(observation: Observation, loader: Loader) -> int:
    """Returns the maximum number of threads. It is limited by the usable cores, by the batches that fit in memory, and
    by the number of batches in an epoch."""
    in_memory = msgspec.structs.replace(observation.environment, shm_free_bytes=None)
    most = min(observation.num_cores, num_batches_held(in_memory, loader) // HELD)
    return min(most, loader.num_batches // HELD) if loader.num_batches is not None else most


def _guess(observation: Observation) -> int:
    from slipstream.diagnose.input_path import input_path  # Imported here because `run` does not need it.
    from slipstream.diagnose.worker_count import best_num_workers

    summary = observation.summary
    path = input_path(observation.session, summary) if summary is not None else None
    best = best_num_workers(observation.session, summary, path) if summary is not None and path is not None else 0
    return max(best, 2) if best else observation.num_cores


def environment(setting: Setting) -> dict[str, str]:
    return wait_policy(int(setting))


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.threads.install import Threads

    threads = Threads(context.decline)
    threads.install(context.patches)
    context.on_loader(lambda arguments: _look(context, threads, arguments, int(setting)))


def _look(context: ApplyContext, threads: Threads, arguments: LoaderArguments, count: int) -> None:
    """Changes no argument. A loader that gets no threads stays as the script built it."""
    from slipstream.data.threads.blockers import thread_obstacle
    from slipstream.seams.user_code import current_site

    threads.expect(0)
    place = where(current_site())
    reason = thread_obstacle(arguments)
    if reason:
        context.decline(f"the loader built {place} uses no threads: {reason}")
        return
    threads.expect(count)
    context.changed(f"{plural(count, 'thread')} in place of num_workers={arguments['num_workers']} {place}")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = (
        "no argument of torch's DataLoader does this: use `slipstream run`, or slipstream.DataLoader(..., "
        f"thread_workers={int(setting)}), or a loader with your own threads "
        "(torchdata.nodes: a ParallelMapper of whole batches with method='thread')"
    )
    return [Edit("thread_workers", "by_hand", loader.site if loader is not None else None, reason=reason)]


def import_edit(observation: Observation, setting: Setting) -> list[Edit]:
    edits = loader_edits(observation, "thread_workers", {"thread_workers": str(int(setting))})
    variables = environment(setting).items() if edits else ()
    return edits + [Edit("thread_workers", "environment", None, argument=k, text=v) for k, v in variables]
