"""Takes a whole batch from the arrays of the dataset with one index operation. The plain loader takes one sample after
the other and stacks the samples.

Helps where the dataset consists of arrays only: a `TensorDataset`, a `Subset` of one, a class whose `__getitem__` only
indexes its tensors or NumPy arrays, or a Hugging Face dataset in torch's format. Hurts nothing, because it does not
change other datasets. Batches are bit-identical and come in the same order. The first batches are built in both ways
and compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.data.samples.pure_index import only_indexes_at
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Batches indexed whole",
    seam="loader",
    causes=("slow_collate", "slow_transform", "no_workers"),
    numerics="identical",
    claims=("loader.fetch",),
)
VALUES = (True,)
# "Dataset" is the class of Hugging Face. Only the trial can tell what objects of these classes hold.
ARRAYS = ("TensorDataset", "Subset", "Dataset")


def applies(observation: Observation) -> Answer:
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader")
    if loader.is_iterable:
        return no("an iterable dataset gives its samples one by one")
    if loader.batch_size is None:
        return no("the loader does not make batches of samples itself")
    if loader.collate_name != "default_collate":
        return no(f"batches are made by {loader.collate_name}, not by torch's default_collate")
    if loader.dataset_name in ARRAYS:
        return YES
    site = loader.getitem_site
    if site is None or not only_indexes_at(site.file, site.line):
        return no(f"{loader.dataset_name} makes its samples one by one")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.samples.batch_fetch import BatchedFetch

    fetch = BatchedFetch(lambda why: context.decline(f"batches are built sample by sample again: {why}"))
    fetch.install(context.patches)
    context.on_loader(lambda arguments: _look(context, arguments))


def _look(context: ApplyContext, arguments: LoaderArguments) -> None:
    """Reports whether the loader will index whole batches. Changes no argument, because the fetcher decides by
    itself."""
    from slipstream.data.samples.batch_fetch import can_gather
    from slipstream.seams.user_code import current_site

    if arguments["batch_size"] is None and arguments["batch_sampler"] is None:
        return
    place = where(current_site())
    if can_gather(arguments["dataset"], arguments["collate_fn"]):
        context.changed(f"whole batches are indexed in the loader built {place}")
    else:
        context.decline(f"the dataset of the loader built {place} does more than index arrays")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "slipstream.DataLoader indexes this dataset with whole batches. Or add __getitems__ to the dataset"
    site = loader.site if loader is not None else None
    return [Edit("batched_fetch", "by_hand", site, text="from slipstream import DataLoader", reason=reason)]
