"""Workers stay from epoch to epoch instead of being started anew.

Helps where epochs are short or the dataset is slow to open. Hurts in memory: they stay during validation too. Done so
that shuffling and augmentation are the same as with fresh workers: the seeds of each epoch are drawn as before. Torch's
own switch, written into a script, draws another shuffle from the second epoch on. A script that changes its dataset
between epochs gets fresh workers each time, since the old ones would not see the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
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
    memory="more",
    claims=("loader.persistent_workers",),
    nesting=1,  # sees the workers that others brought
)


def applies(observation: Observation) -> Answer:
    from slipstream.diagnose.selection import is_several_epochs  # here: `run` needs none of it

    loader, length = observation.loader, observation.session.length
    if loader is None:
        return no("the script has no DataLoader")
    if loader.num_workers == 0:
        return no("the loader has no workers; where `workers` adds some, they stay anyway")
    if loader.persistent_workers:
        return no("the script does it already")
    if length is not None and length.num_epochs == 1 and not is_several_epochs(observation.session):
        return no("the training is one epoch long")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.workers.persistent_epochs import LoaderEpochs

    epochs = LoaderEpochs(context.decline)
    ours: set[int] = set()  # datasets: frameworks build a loader a second time, with our argument in it
    epochs.install(context.patches)
    context.on_loader(lambda arguments: _change(context, epochs, ours, arguments))


def _change(context: ApplyContext, epochs: LoaderEpochs, ours: set[int], arguments: LoaderArguments) -> None:
    from torch.utils.data import IterDataPipe, MapDataPipe

    from slipstream.seams.user_code import current_site

    dataset = arguments["dataset"]
    epochs.expect(None)
    if not arguments["num_workers"]:
        return
    if arguments["persistent_workers"]:
        epochs.expect("kept" if id(dataset) in ours else None)
        return
    if isinstance(dataset, (IterDataPipe, MapDataPipe)):
        context.decline("data pipes share and seed themselves")
        return
    arguments["persistent_workers"] = True
    ours.add(id(dataset))
    epochs.expect("kept")
    context.changed(f"workers stay between epochs {where(current_site())}")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return argument_edits(observation, "persistent_workers", {"persistent_workers": "True"})
