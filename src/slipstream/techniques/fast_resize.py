"""Resizes images with vectorised C code that gives exactly the pixels that Pillow gives.

Helps where `Image.resize` is a large part of the input work. Torchvision's RandomResizedCrop and Resize call it for
Pillow images. The gain is largest where decoding takes little time. Hurts in no known case. The C code is compiled once
per machine. That takes a second or two and needs a C compiler.

The pixels are bit-identical to Pillow's: the weights are the same, and sums of integers do not depend on their order.
As a safeguard, Pillow also resizes the first images of every mode and filter and later one in 256, and the pixels are
compared. Only 8-bit images are resized in this way, with the filters box, bilinear, Hamming, bicubic and Lanczos. Calls
with `reducing_gap`, images in other modes and other libraries are unaffected.
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
    title="Faster resizing of images",
    seam="loader",
    causes=("slow_transform", "slow_decode"),
    numerics="identical",
    needs=("pillow", "a C compiler"),
    nesting=-2,  # Techniques that postpone decoding until the target size is known wrap this one.
)
WHAT = "Image.resize is done by slipstream's C code, with Pillow's pixels"


def applies(observation: Observation) -> Answer:
    return or_no_compiler(why_no_resizing(observation))


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(done: Notice, refused: Notice) -> Installable:
        from slipstream.data.images.resize import Resizing
        from slipstream.data.images.resize_kernel import Resampler

        return Resizing(Resampler(), done, refused)

    in_c(context, WHAT, "an image differed from Pillow's: Pillow resizes the images again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "no edit of the source does this: use `slipstream run` with this recipe"
    return [Edit("fast_resize", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
