"""Copies the next batch to the device on a separate stream while the step runs.

Helps on accelerators where copies take a share of the step even with pinned memory. The gain is largest where the
script waits for the device in every step. Hurts where device memory is short, because it holds one more batch.

Only workers or threads can prepare the next batch early. Without them, the copy starts when the script receives the
batch. The script still receives its batches on the host. When it requests a tensor on the device, it gets the finished
copy. Batches, their order and their bits are unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.numbers import in_ms
from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.pinning import has_copies, lacks_device, pin

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="The next batch copied while the step runs",
    seam="transfer",
    causes=("pageable_transfer",),
    numerics="identical",
    work="same",
    memory="more",
    needs=("accelerator",),
    claims=("loader.next",),
)
LEAST_SHARE = 0.01  # Minimum share of copies in the step. With a smaller share, overlapping them gains nothing.


def applies(observation: Observation) -> Answer:
    summary, copied = observation.summary, has_copies(observation)
    if not copied.is_yes:
        return copied
    transfer_ms = summary.phases.get("transfer", 0.0) if summary is not None else None
    if summary is not None and transfer_ms is not None and transfer_ms < LEAST_SHARE * summary.step_ms:
        return no(f"copies take only {in_ms(transfer_ms)} of a step of {in_ms(summary.step_ms)}")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.transport.copy_stream import Accelerator
    from slipstream.data.transport.device_prefetch import DevicePrefetch

    if lacks_device(context):
        return

    def on_change() -> None:
        context.changed("batches are copied to the device ahead of their step")

    DevicePrefetch(Accelerator(), context.decline, on_change).install(context.patches)
    context.on_loader(lambda arguments: pin(context, arguments))  # Copies from pageable memory do not overlap.


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "copy the next batch on a separate torch.Stream before the step, and wait for it after the step"
    site = loader.site if loader is not None else None
    return [Edit(technique="device_prefetch", kind="by_hand", site=site, reason=reason)]
