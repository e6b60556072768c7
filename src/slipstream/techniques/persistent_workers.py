"""Keeps workers alive between epochs instead of starting new ones.

Helps where epochs are short or the dataset is slow to open. Hurts memory use, because the workers also stay during
validation.

Shuffling and augmentation are the same as with new workers, because the seeds of each epoch are drawn as before.
Torch's own `persistent_workers=True` in a script draws another shuffle from the second epoch on. If the script changes
its dataset between epochs, the workers are started again, because the old workers would not see the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import argument_edits, where

if TYPE_CHECKING:
    from slipstream.data.workers.persistent_epochs import LoaderEpochs
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Workers that stay between epochs",
    seam="loader",
    causes=("worker_restart",),
    numerics="redrawn",
    work="same",
    memory="more",
    claims=("loader.persistent_workers",),
    nesting=1,  # Runs after the techniques that add workers.
)


def applies(observation: Observation) -> Answer:
    from slipstream.diagnose.steps.selection import is_several_epochs  # Imported here because `run` does not need it.

    loader, length = observation.loader, observation.session.length
    if loader is None:
        return no("the script has no DataLoader")
    if loader.num_workers == 0:
        return no("the loader has no workers, and workers that the technique `workers` adds stay alive anyway")
    if loader.persistent_workers:
        return already("the script's workers stay between epochs already")
    if length is not None and length.num_epochs == 1 and not is_several_epochs(observation.session):
        return no("the training is one epoch long")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.workers.persistent_epochs import LoaderEpochs

    epochs = LoaderEpochs(context.decline)
    # The ids of datasets whose loaders were changed. A framework builds a loader again, with the changed argument.
    changed_datasets: set[int] = set()
    epochs.install(context.patches)
    context.on_loader(lambda arguments: _change(context, epochs, changed_datasets, arguments))


def _change(
    context: ApplyContext, epochs: LoaderEpochs, changed_datasets: set[int], arguments: LoaderArguments
) -> None:
    from torch.utils.data import IterDataPipe, MapDataPipe

    from slipstream.seams.user_code import current_site

    dataset = arguments["dataset"]
    epochs.expect(None)
    if not arguments["num_workers"]:
        return
    if arguments["persistent_workers"]:
        epochs.expect("kept" if id(dataset) in changed_datasets else None)
        return
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        context.decline("data pipes shard and seed themselves")
        return
    arguments["persistent_workers"] = True
    changed_datasets.add(id(dataset))
    epochs.expect("kept")
    context.changed(f"workers stay between epochs {where(current_site())}")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return argument_edits(observation, "persistent_workers", {"persistent_workers": "True"})
