"""Copies images to the device as bytes and converts them there to exactly the same floats.

Helps on accelerators where copies of images take a noticeable share of the step, because bytes are a quarter of the
size of floats. Hurts where workers are the bottleneck, because they pack every batch and verify every value. Unpacking
needs some device memory.

The script still receives its batch of floats on the host. When the script requests the batch on the device, the bytes
are copied there, and a table gives the float of each byte. Each channel may have its own scale and offset. Images that
were converted from bytes in another way are copied as floats. A batch that was changed in place is copied as floats
too, but a change that was made through NumPy is not noticed. The bits are unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Recipe, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.pinning import DEVICES, lacks_device

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Images copied to the device as bytes",
    seam="transfer",
    causes=("float_transfer",),
    numerics="identical",
    memory="more",
    needs=("accelerator",),
    claims=("batch.bytes",),
    nesting=-1,  # Prefetching and non-blocking copies wrap this technique.
)


def applies(observation: Observation) -> Answer:
    return _applies(observation, observation.loader.num_workers if observation.loader is not None else 0)


def applies_with(observation: Observation, recipe: Recipe) -> Answer:
    num_workers = recipe.setting_of("workers")
    return applies(observation) if num_workers is None else _applies(observation, int(num_workers))


def _applies(observation: Observation, num_workers: int) -> Answer:
    loader = observation.loader
    if observation.device not in DEVICES:
        return no(f"the model is on {observation.device}: images are copied as bytes to CUDA, ROCm or XPU devices only")
    if loader is None:
        return no("the script has no DataLoader")
    if not any(facts.was_bytes and facts.dtype == "float32" for facts in loader.tensor_facts):
        return no("no tensor of a batch holds floats that were converted from bytes")
    if not num_workers:
        return no("the loader has no workers that could pack the bytes")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.transport.byte_transfer import ByteCopies

    if lacks_device(context):
        return

    def on_change() -> None:
        context.changed("images are copied to the device as bytes")

    ByteCopies(on_change, context.decline).install(context.patches)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "return uint8 images from the dataset, and scale and normalise them after .to(device)"
    return [Edit("byte_transfer", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
