"""Samples are kept in memory whole, from the first epoch on, and handed out as copies instead of being made again.

Helps where samples are read, decoded and transformed the same way in every epoch, and all of them fit into a third of
the memory that is free: validation, feature files, images without random augmentation. Hurts where a sample is quicker
made than copied; with random augmentation, or too little memory, it does nothing. What it gains it gains from the
second epoch on, and races time those. One store is shared by the script's
process and its forked workers, so it is there once; with spawned workers it is not used. Every process first asks the
dataset for a few samples twice, and in every epoch for a few kept ones again; the random generators are watched
whenever a sample is made. A dataset that draws, counts, is changed, or answers otherwise loses all that was kept, with
its memory, and is read as before. Not seen is a file or a clock that changes a sample and none of those that are asked
for again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.data.samples.pure_index import only_indexes_at
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.prefill import fill_before_races
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.data.samples.sample_cache import SampleCache
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Samples kept in memory",
    seam="loader",
    causes=("slow_decode", "slow_read", "slow_transform", "no_workers", "worker_count"),
    numerics="identical",
    memory="more",
    is_later=True,
    claims=("loader.fetch", "samples.kept"),
)
VALUES = (True,)


def applies(observation: Observation) -> Answer:
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader")
    if loader.is_iterable:
        return no("an iterable dataset gives its samples one by one")
    if loader.batch_size is None:
        return no("the loader does not make batches of samples itself")
    if loader.dataset_name in ("TensorDataset", "list"):
        return no(f"the samples of {loader.dataset_name} are in memory already")
    site = loader.getitem_site
    if site is not None and only_indexes_at(site.file, site.line):
        return no(f"{loader.dataset_name} only indexes what is in memory already")
    if loader.start_method not in ("", "fork"):
        return no("workers are spawned here, and each would have to keep samples of its own")
    length = observation.session.length
    if length is not None and length.num_epochs == 1 and length.around is None:
        return no("the training is one epoch long")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.samples.sample_cache import SampleCache

    kept = SampleCache(
        lambda place: context.changed(f"samples are kept in the loader built {place}"),
        lambda why: context.decline(f"samples are not kept: {why}"),
    )
    fill_before_races(context, lambda loader, limit_s: _fill(context, kept, loader, limit_s))  # inside what follows
    kept.install(context.patches)
    context.on_loader(lambda arguments: _admit(kept, arguments))


def _admit(kept: SampleCache, arguments: LoaderArguments) -> None:
    """Changes no argument."""
    from slipstream.seams.user_code import current_site

    kept.admit(arguments["dataset"], where(current_site()))


def _fill(context: ApplyContext, kept: SampleCache, loader: Any, limit_s: float) -> None:
    num_kept, share = kept.fill(loader, limit_s)
    if num_kept:
        context.changed(f"before the race {share:.0%} of the coming epoch were read: {num_kept:,} samples kept")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "keep what __getitem__ returns in the dataset, or write the prepared samples to disk once"
    return [Edit("sample_cache", "by_hand", loader.site if loader is not None else None, reason=reason)]
