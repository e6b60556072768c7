"""Makes workers build batches in shared memory that they reuse. Torch allocates new shared memory for every tensor.

Helps where batches are large or have many tensors. Allocating shared memory takes longer than the copy into it, and
torch sends a message through a socket for every tensor. Hurts memory use a little: each worker keeps the shared memory
of up to three more batches, and up to 128 MB of the memory in which it made the samples of a batch.

The memory of a batch is not reused while the script holds the batch. It is never reused if the script sends the batch
to another process. Large NumPy arrays are sent in the same way. The technique needs workers: the script's own workers,
or those that `workers` adds. If the loader pins memory, torch makes its pinned copy as before. Tensors that the dataset
itself holds are sent in torch's own way. Batches, their order and their bits are unchanged.
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
    title="Shared memory reused",
    seam="loader",
    causes=("heavy_handover", "slow_collate"),
    numerics="identical",
    memory="more",
    claims=("loader.handover",),
    nesting=1,  # Runs after the techniques that add workers.
)
VALUES = (True,)
HELD = 2  # Batches that a worker prefetches unless the script sets prefetch_factor


def applies(observation: Observation) -> Answer:
    return applies_with(observation, Recipe())


def applies_with(observation: Observation, recipe: Recipe) -> Answer:
    """Whether the technique applies together with a recipe. The recipe may add workers, which pass their batches to the
    script."""
    loader = observation.loader
    if loader is None:
        return no("the script has no DataLoader")
    if recipe.setting_of("thread_workers") is not None:
        return no("threads build the batches, so no batch is copied between processes")
    num_workers = recipe.setting_of("workers")
    count = loader.num_workers if num_workers is None else int(num_workers)
    if count == 0:
        return no("the loader has no workers")
    if observation.environment.shm_bytes is None:
        return no("tensors are not shared through /dev/shm on this system")
    if _num_kept(loader, count) > num_batches_held(observation.environment, loader):
        return no("/dev/shm or memory has no room for the buffers")
    return YES


def _num_kept(loader: Loader, num_workers: int) -> int:
    return num_workers * ((loader.prefetch_factor or HELD) + SPARE)


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.transport.buffer_reuse import BufferReuse

    reuse = BufferReuse(lambda place: context.changed(f"the loader built {place} reuses shared memory for its batches"))
    reuse.install(context.patches)
    context.on_loader(lambda arguments: _look(reuse, arguments))


def _look(reuse: BufferReuse, arguments: LoaderArguments) -> None:
    """Registers the dataset and changes no argument. If the loader gets workers, they reuse buffers."""
    from slipstream.seams.user_code import current_site

    reuse.want(arguments["dataset"], where(current_site()))


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "torch has no option for this. Fewer and larger tensors in a batch have a similar effect"
    return [Edit("buffer_reuse", "by_hand", loader.site if loader is not None else None, reason=reason)]
