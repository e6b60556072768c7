"""Builds batches in worker processes while the step runs. `tune` tries several numbers of workers, at most one per
core.

Helps where the step waits for input. Fewer workers help where the workers take cores that the step needs. Hurts where
building a batch is faster than passing it between processes, or where the cores are busy already.

Every loader with enough batches gets workers, including those for validation, because they read the same kind of data.
Added workers stay alive between epochs as long as the script does not change its dataset. If workers use a large part
of the cores, the threads of the step sleep while they wait for each other. In a busy loop they would take the cores
from the workers.

If the dataset draws no random numbers, the training is bit-identical, including the shuffling. If it does,
augmentations draw other numbers. An iterable dataset gets at most one worker, because several workers would change the
number and the size of its batches.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.data.workers.shm_budget import num_batches_held
from slipstream.numbers import in_ms, plural
from slipstream.records import Edit, Loader, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.openmp_wait_policy import wait_policy
from slipstream.techniques._core.source_edits import argument_edits, where

if TYPE_CHECKING:
    from slipstream.data.workers.persistent_epochs import LoaderEpochs
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Worker processes for the loader",
    seam="loader",
    causes=("no_workers", "worker_count"),
    numerics="redrawn",
    work="spread",
    memory="more",
    claims=("loader.num_workers",),
)
VALUES = range(257)
HELD = 2  # Batches that a worker prefetches unless the script sets prefetch_factor
LEAST_SHARE = 0.02  # Minimum share of input in the step. With a smaller share, workers gain nothing.


def applies(observation: Observation) -> Answer:
    loader, summary = observation.loader, observation.summary
    if loader is None:
        return no("the script has no DataLoader")
    if loader.num_threads:
        return already(f"{plural(loader.num_threads, 'thread')} of slipstream.DataLoader build the batches")
    if loader.is_iterable and not _may_shard(loader):
        return no("the iterable dataset does not share its data among workers (get_worker_info)")
    on_device = next((facts.device for facts in loader.tensor_facts if facts.device != "cpu"), None)
    if on_device is not None:
        return no(f"the dataset makes its tensors on {on_device}, which a worker cannot do")
    if not settings(observation):
        return no(_why_none(observation, loader))
    if loader.num_workers == 0 and summary is not None and summary.step_ms > 0:
        input_ms = summary.phases.get("input", 0.0)
        if input_ms < LEAST_SHARE * summary.step_ms:
            return no(f"input takes only {in_ms(input_ms)} of a step of {in_ms(summary.step_ms)}")
    return YES


def _may_shard(loader: Loader) -> bool:
    """Whether workers may divide the dataset among themselves. They cannot if the dataset is the user's own and its
    file never names get_worker_info. For other datasets only the trial can tell."""
    if loader.getitem_site is None:
        return True
    try:
        return "get_worker_info" in Path(loader.getitem_site.file).read_text(errors="replace")
    except OSError:
        return True


def _why_none(observation: Observation, loader: Loader) -> str:
    if loader.is_iterable and loader.num_workers > 1:
        return "another number of workers would change the batches of an iterable dataset in number and size"
    if num_batches_held(observation.environment, loader) < HELD:
        return "/dev/shm has no room for the batches of a worker"
    return f"an epoch has only {plural(loader.num_batches or 0, 'batch', 'es')}"


def settings(observation: Observation) -> list[Setting]:
    """Returns the number that the diagnosis predicts, the powers of two and the maximum, without the present number.
    The numbers that are nearest to the prediction come first. 0 comes last if the loader has workers. For an iterable
    dataset, returns 1 if the loader has no workers, and 0 if it has one worker."""
    loader = observation.loader
    if loader is None:
        return []
    most = _most(observation, loader)
    if loader.is_iterable:
        return [1 - loader.num_workers] if loader.num_workers <= min(1, most) else []
    guess = min(max(1, most), _guess(observation))
    counts = {count for count in (guess, *(2**power for power in range(8)), most) if 1 <= count <= most}
    ordered = sorted(counts - {loader.num_workers}, key=lambda count: _distance(count, guess))
    return [*ordered, 0] if loader.num_workers > 0 else [*ordered]


def _most(observation: Observation, loader: Loader) -> int:
    """Returns the maximum number of workers. It is limited by the usable cores, by the batches that fit in /dev/shm and
    in memory, and by the number of batches in an epoch."""
    prefetch = loader.prefetch_factor or HELD
    most = min(observation.num_cores, num_batches_held(observation.environment, loader) // prefetch)
    return min(most, loader.num_batches // 2) if loader.num_batches is not None else most


def _guess(observation: Observation) -> int:
    from slipstream.diagnose.input_path import input_path  # Imported here because `run` does not need it.
    from slipstream.diagnose.worker_count import best_num_workers

    summary = observation.summary
    path = input_path(observation.session, summary) if summary is not None else None
    best = best_num_workers(observation.session, summary, path) if summary is not None and path is not None else 0
    # A single worker overlaps the work with the step but does not divide the work. If the prediction is a little too
    # low, one worker is too slow and two are not.
    return max(best, 2) if best else observation.num_cores


def _distance(count: int, guess: int) -> tuple[float, int]:
    return abs(math.log2(count / guess)), -count


def environment(setting: Setting) -> dict[str, str]:
    return wait_policy(int(setting))


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.workers.persistent_epochs import LoaderEpochs

    epochs = LoaderEpochs(context.decline)
    # The ids of datasets whose loaders had no workers. A framework builds the same loader a second time.
    changed_datasets: set[int] = set()
    epochs.install(context.patches)
    context.on_loader(lambda arguments: _change(context, epochs, changed_datasets, arguments, int(setting)))


def _change(
    context: ApplyContext, epochs: LoaderEpochs, changed_datasets: set[int], arguments: LoaderArguments, count: int
) -> None:
    from slipstream.data.workers.worker_blockers import obstacle
    from slipstream.seams.user_code import current_site

    now, dataset = arguments["num_workers"], arguments["dataset"]
    epochs.expect("lent" if now == count and id(dataset) in changed_datasets else None)
    if now == count or type(now) is not int:
        return
    place = where(current_site())
    reason = obstacle(arguments, count)
    if not reason and _is_tiny(arguments, count):
        reason = "it has too few batches for the workers"
    if reason:
        context.decline(f"the loader built {place} keeps num_workers {now}: {reason}")
        return
    arguments["num_workers"] = count
    if count == 0:
        arguments.update(prefetch_factor=None, persistent_workers=False, multiprocessing_context=None, timeout=0)
    elif now == 0:
        arguments["persistent_workers"] = True
        changed_datasets.add(id(dataset))
        epochs.expect("lent")
    context.changed(f"num_workers {now} -> {count} {place}")


def _is_tiny(arguments: LoaderArguments, count: int) -> bool:
    """Whether the loader has fewer batches than the workers would prefetch, as in a short evaluation."""
    try:
        if arguments["batch_sampler"] is not None:
            num_batches = len(arguments["batch_sampler"])
        else:
            num_samples = len(arguments["sampler"] if arguments["sampler"] is not None else arguments["dataset"])
            num_batches = math.ceil(num_samples / (arguments["batch_size"] or 1))
    except Exception:  # The loader has no length, or the user's code raised an exception.
        return False
    return bool(num_batches < HELD * count)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    arguments = {"num_workers": str(int(setting))}
    if loader is not None and loader.num_workers == 0 and setting:
        arguments["persistent_workers"] = "True"
    if_given: tuple[str, ...] = ()
    if setting == 0:  # Torch rejects options for workers on a loader without workers.
        arguments |= {"persistent_workers": "False", "prefetch_factor": "None", "timeout": "0"}
        if_given = ("persistent_workers", "prefetch_factor", "timeout")
    edits = argument_edits(observation, "workers", arguments, if_given)
    return edits + [Edit("workers", "environment", None, argument=k, text=v) for k, v in environment(setting).items()]
