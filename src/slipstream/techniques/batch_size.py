"""The loader that trains makes batches of another size. `slipstream tune --fit` finds the largest that fits in memory
and the fastest; one is kept only where `--fit --allow different` asks for it.

Helps where a device is not busy with the batch as it is, or where that does not fit in its memory. Hurts the comparison
with what was trained before: another batch is another training, with fewer or more updates in an epoch, and whether the
learning rate and its schedule should follow is for you to decide. It is the first loader that the script builds, and
those that shuffle or have a sampler; others, as of an evaluation, keep their size. A script that makes its batches
without a DataLoader, or with a batch sampler of its own, must be told the size itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import argument_edits, where

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Batches of another size",
    seam="loader",
    causes=(),
    numerics="different",
    memory="more",
    claims=("loader.batch_size",),
    is_opt_in=True,
    purpose="fit",
)
VALUES = range(1, 1 << 20)


def applies(observation: Observation) -> Answer:
    loader = observation.loader
    if loader is None:
        return no("the script makes its batches without a DataLoader: change their size where it makes them")
    if loader.batch_size is None:
        return no("the DataLoader does not make the batches itself (batch_size=None, or a batch sampler of its own)")
    return YES


def settings(observation: Observation) -> list[Setting]:
    """Twice and half of what the script has; `tune --fit` finds out what fits and tries others."""
    size = observation.loader.batch_size if observation.loader is not None else None
    return [2 * size, *([size // 2] if size > 1 else [])] if size else []


def apply(context: ApplyContext, setting: Setting) -> None:
    num_built = 0

    def change(arguments: LoaderArguments) -> None:
        nonlocal num_built
        num_built += 1
        if num_built == 1 or _draws(arguments):
            _resize(context, arguments, int(setting))

    context.on_loader(change)


def _draws(arguments: LoaderArguments) -> bool:
    """Whether samples come in another order than that of the dataset: those of training do."""
    from torch.utils.data import SequentialSampler

    batches = arguments["batch_sampler"]
    sampler = arguments["sampler"] if batches is None else getattr(batches, "sampler", batches)
    return bool(arguments["shuffle"]) or (sampler is not None and not isinstance(sampler, SequentialSampler))


def _resize(context: ApplyContext, arguments: LoaderArguments, size: int) -> None:
    from torch.utils.data import BatchSampler

    from slipstream.seams.user_code import current_site

    place, batches = where(current_site()), arguments["batch_sampler"]
    now = arguments["batch_size"] if batches is None else getattr(batches, "batch_size", None)
    if now == size:
        context.changed(f"batches of {size} in the loader built {place}, as it has them")
    elif batches is not None and type(batches) is not BatchSampler:
        context.decline(f"the loader built {place} has a batch sampler of its own, {type(batches).__name__}")
    elif now is None:
        context.decline(f"the loader built {place} does not make the batches itself")
    else:
        if batches is None:
            arguments["batch_size"] = size
        else:
            arguments["batch_sampler"] = BatchSampler(batches.sampler, size, batches.drop_last)
        context.changed(f"batch_size {now} -> {size} {place}")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return argument_edits(observation, "batch_size", {"batch_size": str(int(setting))})
