"""Pictures are resized by C of ours, many sums at a time, with the very pixels that Pillow gives.

Helps where `Image.resize` takes much of the input: random crops that are resized (torchvision's RandomResizedCrop and
Resize call it for Pillow's images), above all where decoding is no longer the larger part. Hurts nowhere that we know;
compiling takes a second or two, once on a machine, and needs a C compiler. The pixels are Pillow's, bit for bit: the
weights are the same, and sums of integers do not depend on their order. Still the first pictures of every mode and
filter, and then one in many, are resized by Pillow too and compared. 8-bit pictures only, with the filters box,
bilinear, Hamming, bicubic and Lanczos; with `reducing_gap`, in other modes, and by other libraries, as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import Answer, Card
from slipstream.techniques._core.images import Installable, Notice, in_c, or_no_compiler, why_no_resizing
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="Pictures resized many sums at a time",
    seam="loader",
    causes=("slow_transform", "slow_decode"),
    numerics="identical",
    needs=("pillow", "a C compiler"),
    nesting=-2,  # what waits for the size that a picture is shrunk to stands above it
)
WHAT = "Image.resize is done by C of ours, with Pillow's pixels"


def applies(observation: Observation) -> Answer:
    return or_no_compiler(why_no_resizing(observation))


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(done: Notice, refused: Notice) -> Installable:
        from slipstream.data.images.resize import Resizing
        from slipstream.data.images.resize_kernel import Resampler

        return Resizing(Resampler(), done, refused)

    in_c(context, WHAT, "a picture came out otherwise: Pillow resizes again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "no edit does this: `slipstream run` with this recipe does"
    return [Edit("fast_resize", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
