"""Builds batches in pinned memory and copies them to the device without blocking the host.

Helps on accelerators where copies take a share of the step. Hurts where memory is short, because pinned pages cannot be
swapped.

Only copies of loader batches to the device are changed. A copy back to the host, or from a buffer that the script fills
itself, is not changed. Results are identical unless the script changes a batch on the host in place after it has
started the copy.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, already
from slipstream.techniques._core.observation import Observation
from slipstream.techniques._core.pinning import has_copies, lacks_device, pin
from slipstream.techniques._core.source_edits import argument_edits

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Pinned memory and non-blocking copies",
    seam="transfer",
    causes=("pageable_transfer",),
    numerics="identical",
    memory="more",
    needs=("accelerator",),
    claims=("loader.pin_memory",),
)


def applies(observation: Observation) -> Answer:
    from slipstream.diagnose.steps.selection import transfers  # Imported here because `run` does not need it.

    loader, copied = observation.loader, has_copies(observation)
    if not copied.is_yes or loader is None:
        return copied
    copies = transfers(observation.session)
    if loader.pin_memory and copies and not any(copy.pinned and copy.blocking for copy in copies):
        return already("the script already pins its batches and copies them without blocking")
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    from slipstream.data.transport.nonblocking import NonBlockingCopies

    if lacks_device(context):
        return

    def on_change() -> None:
        context.changed("copies of batches to the device no longer block")

    NonBlockingCopies(on_change).install(context.patches)
    context.on_loader(lambda arguments: pin(context, arguments))


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    from slipstream.diagnose.steps.selection import transfers

    loader = observation.loader
    edits = argument_edits(observation, "pinned_memory", {"pin_memory": "True"}) if loader else []
    copies = Counter(copy.ident for copy in transfers(observation.session) if copy.blocking and copy.ident >= 0)
    return edits + [
        Edit(
            technique="pinned_memory",
            kind="argument",
            site=observation.session.sites[ident],
            call="cuda" if ".cuda(" in observation.session.sites[ident].text else "to",
            argument="non_blocking",
            text="True",
            observed="False",
            num_calls=_num_calls(observation, count),
        )
        for ident, count in sorted(copies.items())
    ]


def _num_calls(observation: Observation, num_copies: int) -> int:
    """Returns how many copies one execution of the line makes. It is the number of copies divided by the number of
    batches."""
    from slipstream.diagnose.steps.selection import watched_steps

    num_batches = sum(step.num_batches for step in watched_steps(observation.session))
    return max(1, round(num_copies / num_batches)) if num_batches else 1
