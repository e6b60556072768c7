"""Pictures become arrays and tensors by C of ours, many bytes at a time.

Helps where `np.array(image)` and `permute(2, 0, 1).contiguous()` are much of the input: torchvision's ToTensor does
both for each of Pillow's images, and so do most scripts without it, above all where decoding and resizing are no longer
the larger part. Hurts nowhere that we know; compiling takes a second, once on a machine, and needs a C compiler. Bytes
only change places, so they are the same; still the first results, and then one in many, are made by Pillow and torch
too and compared. RGB pictures only; the tensors' part in forked workers only, since models use the same method.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import Answer, Card
from slipstream.techniques._core.images import Installable, Notice, in_c, or_no_compiler, why_no_pictures
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Pictures made arrays many bytes at a time",
    seam="loader",
    causes=("slow_transform", "slow_decode"),
    numerics="identical",
    needs=("pillow", "a C compiler"),
)
WHAT = "pictures become arrays and tensors by C of ours, with the same bytes"


def applies(observation: Observation) -> Answer:
    return or_no_compiler(why_no_pictures(observation))


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(done: Notice, refused: Notice) -> Installable:
        from slipstream.data.images.to_array import ArrayConversion, PlaneKernel

        return ArrayConversion(PlaneKernel(), done, refused)

    in_c(context, WHAT, "an array came out otherwise: Pillow and torch make them again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "no edit does this: `slipstream run` with this recipe does"
    return [Edit("fast_arrays", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
