"""Workers build batches in shared memory that they use again, where torch takes fresh memory for every tensor.

Helps where batches are large or of many tensors: fresh shared memory costs more than the copy into it, and every tensor
a trip through a socket. What the samples of a batch took is kept for those of the next one, up to 128 MB. Hurts a
little in memory: each worker keeps that, and up to three batches more. A batch that the script keeps keeps its memory;
one that it sends to another process is never written again. Large NumPy arrays travel the same way. Needs workers, the
script's own or those of `workers`. Where memory is pinned, torch pins a copy as before. Tensors that the dataset itself
keeps go torch's way. Same batches, same order, same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.data.workers.shm_budget import SPARE, num_batches_held
from slipstream.records import Edit, Loader, Recipe, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.source_edits import where

if TYPE_CHECKING:
    from slipstream.data.transport.buffer_reuse import BufferReuse
    from slipstream.techniques._core.context import ApplyContext, LoaderArguments

CARD = Card(
    title="Shared memory used again",
    seam="loader",
    causes=("heavy_handover", "slow_collate"),
    numerics="identical",
    memory="more",
    claims=("loader.handover",),
    nesting=1,  # sees the workers that others brought
)
VALUES = (True,)
HELD = 2  # batches that a worker holds ready, unless the script says otherwise


def applies(observation: Observation) -> Answer:
    return applies_with(observation, Recipe())


def applies_with(observation: Observation, recipe: Recipe) -> Answer:
    """The same question beside other techniques: where they bring workers there is something to hand over."""
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader")
    if recipe.setting_of("thread_workers") is not None:
        return no("threads build the batches, and hand nothing over")
    num_workers = recipe.setting_of("workers")
    count = loader.num_workers if num_workers is None else int(num_workers)
    if count == 0:
        return no("the loader has no workers that hand batches over")
    if observation.environment.shm_bytes is None:
        return no("tensors do not travel through /dev/shm here")
    if _num_kept(loader, count) > num_batches_held(observation.environment, loader):
        return no("/dev/shm or memory has no room for batches that are kept")
    return YES


def _num_kept(loader: Loader, num_workers: int) -> int:
    return num_workers * ((loader.prefetch_factor or HELD) + SPARE)


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.transport.buffer_reuse import BufferReuse

    reuse = BufferReuse(
        lambda place: context.changed(f"batches come in memory that is used again from the loader built {place}")
    )
    reuse.install(context.patches)
    context.on_loader(lambda arguments: _look(reuse, arguments))


def _look(reuse: BufferReuse, arguments: LoaderArguments) -> None:
    """Changes no argument: the workers do it, where the loader comes to have some."""
    from slipstream.seams.user_code import current_site

    reuse.want(arguments["dataset"], where(current_site()))


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "torch has no switch for it; fewer and larger tensors in a batch come near"
    return [Edit("buffer_reuse", "by_hand", loader.site if loader is not None else None, reason=reason)]
