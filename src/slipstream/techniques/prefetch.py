"""Lets each worker prefetch more batches: prefetch_factor 4 or 8 instead of 2.

Helps where batches take unequal times to build and the step waits for the slow ones. Hurts memory use only. The
prefetched batches take room in /dev/shm, and more batches are discarded when an epoch ends early. Batches and their
order are unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.data.workers.shm_budget import num_batches_held
from slipstream.records import Edit, Loader, Recipe, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import argument_edits, where

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="More batches prefetched",
    seam="loader",
    causes=("shallow_prefetch",),
    numerics="identical",
    work="same",
    memory="more",
    claims=("loader.prefetch_factor",),
    nesting=1,  # Runs after the techniques that add workers.
)
VALUES = range(1, 65)
DEPTHS = (4, 8)
DEFAULT = 2  # Torch's default


def applies(observation: Observation) -> Answer:
    return applies_with(observation, Recipe())


def applies_with(observation: Observation, recipe: Recipe) -> Answer:
    """Whether the technique applies together with a recipe. The recipe may add workers, which then prefetch batches."""
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader")
    num_workers = recipe.setting_of("workers")
    count = loader.num_workers if num_workers is None else int(num_workers)
    if count == 0:
        return no("the loader has no workers that could prefetch batches")
    if (loader.prefetch_factor or DEFAULT) >= max(DEPTHS):
        return already(f"each worker already prefetches {loader.prefetch_factor} batches")
    if not _depths(observation, loader, count):
        return no("/dev/shm or memory has no room for more batches")
    return YES


def settings(observation: Observation) -> list[Setting]:
    loader = observation.loader
    return list(_depths(observation, loader, max(1, loader.num_workers))) if loader is not None else []


def _depths(observation: Observation, loader: Loader, num_workers: int) -> list[int]:
    held = num_batches_held(observation.environment, loader)
    now = loader.prefetch_factor or DEFAULT
    return [depth for depth in DEPTHS if depth > now and depth * num_workers <= held]


def apply(context: ApplyContext, setting: Setting) -> None:
    context.on_loader(lambda arguments: _change(context, arguments, int(setting)))


def _change(context: ApplyContext, arguments: LoaderArguments, depth: int) -> None:
    from slipstream.seams.user_code import current_site

    if not arguments["num_workers"]:
        return
    now = arguments["prefetch_factor"] or DEFAULT
    if now < depth:
        arguments["prefetch_factor"] = depth
        context.changed(f"prefetch_factor {now} -> {depth} {where(current_site())}")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return argument_edits(observation, "prefetch", {"prefetch_factor": str(int(setting))})
