"""Changes the batch size of the DataLoader used for training. `slipstream tune --fit` finds the largest batch size that
fits in memory and the fastest one. The recipe contains one of them only with `--fit --allow different`.

Helps where the present batch does not keep the device busy, or does not fit in its memory. Hurts the comparison with
earlier trainings, because with another batch size an epoch has more or fewer updates. Decide yourself whether to change
the learning rate and its schedule too.

The technique changes the first loader that the script builds and all loaders that shuffle or have a sampler. Other
loaders, such as one for evaluation, keep their batch size. If a script makes its batches without a DataLoader or with
its own batch sampler, change the size in the script.
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
        return no("the script makes its batches without a DataLoader: change the batch size in the script")
    if loader.batch_size is None:
        return no("the DataLoader does not make the batches itself (batch_size=None or a custom batch sampler)")
    return YES


def settings(observation: Observation) -> list[Setting]:
    """Returns twice the script's batch size and half of it. `tune --fit` also tries other sizes."""
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
    """Whether the loader reads samples in another order than the dataset's, as loaders for training do."""
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
        context.changed(f"batch_size {size} was set already in the loader built {place}")
    elif batches is not None and type(batches) is not BatchSampler:
        context.decline(f"the loader built {place} has the script's own batch sampler, {type(batches).__name__}")
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
