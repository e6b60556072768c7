"""Keeps whole samples in memory from the first epoch on and returns copies of them instead of making them again.

Helps where samples are read, decoded and transformed in the same way in every epoch, and all of them fit in a third of
the free memory: validation, feature files, images without random augmentation. The gain starts with the second epoch,
and races time that epoch. Hurts where making a sample is faster than copying it. With random augmentation, or too
little memory, the technique does nothing.

The script's process and its forked workers share one cache. With spawned workers the cache is not used. Every process
first requests a few samples twice, and requests a few cached samples again in every epoch. The random generators are
watched whenever a sample is made, and so are the attributes of the dataset and the global and enclosed variables that
its functions read. If a dataset draws random numbers, counts calls, is changed, or returns another value, its cache is
freed and the dataset is read as before. If one of its functions in your files prints, logs, writes a file or sets a
variable outside of the function, the dataset is not cached, because cached samples do not call it. Three cases go
unnoticed: a file or a clock that changes some samples, but none of those that are requested again; a NumPy array or a
long list that is changed in place within an epoch; and what functions of installed packages print or write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slipstream.data.samples.pure_index import only_indexes_at
from slipstream.numbers import in_percent
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.prefill import fill_before_races
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.data.samples.sample_cache import SampleCache
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Samples cached in memory",
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
        return already(f"the samples of {loader.dataset_name} are in memory already")
    site = loader.getitem_site
    if site is not None and only_indexes_at(site.file, site.line):
        return already(f"{loader.dataset_name} only indexes what is in memory already")
    if loader.start_method not in ("", "fork"):
        return no("workers are spawned here, and each would need its own cache")
    length = observation.session.length
    if length is not None and length.num_epochs == 1 and length.around is None:
        return no("the training is one epoch long")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.samples.sample_cache import SampleCache

    kept = SampleCache(
        lambda place: context.changed(f"samples are cached in the loader built {place}"),
        lambda why: context.decline(f"samples are not cached: {why}"),
    )
    # This patch is installed first, so it runs inside the patches that follow.
    fill_before_races(context, lambda loader, limit_s: _fill(context, kept, loader, limit_s))
    kept.install(context.patches)
    context.on_loader(lambda arguments: _admit(kept, arguments))


def _admit(kept: SampleCache, arguments: LoaderArguments) -> None:
    """Registers the dataset and changes no argument."""
    from slipstream.seams.user_code import current_site

    kept.admit(arguments["dataset"], where(current_site()))


def _fill(context: ApplyContext, kept: SampleCache, loader: Any, limit_s: float) -> None:
    num_kept, share = kept.fill(loader, limit_s)
    if num_kept:
        context.changed(f"before the race {in_percent(share)} of the next epoch was read: {num_kept:,} samples cached")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "cache what __getitem__ returns in the dataset, or write the prepared samples to disk once"
    return [Edit("sample_cache", "by_hand", loader.site if loader is not None else None, reason=reason)]
