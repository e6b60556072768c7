"""Converts images to arrays and tensors with C code that copies many bytes at a time.

Helps where `np.array(image)` and `permute(2, 0, 1).contiguous()` are a large part of the input work. Torchvision's
ToTensor makes both calls for each Pillow image, and so do most scripts without torchvision. The gain is largest where
decoding and resizing take little time. Hurts in no known case. The C code is compiled once per machine. That takes a
second and needs a C compiler.

The result is bit-identical, because bytes are only moved. As a safeguard, Pillow and torch also compute the first
results and later one in 256, and the results are compared. Only RGB images are converted. Tensors are converted only in
forked workers, because models in the script's process call the same tensor method.
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
    title="Faster conversion of images to arrays",
    seam="loader",
    causes=("slow_transform", "slow_decode"),
    numerics="identical",
    needs=("pillow", "a C compiler"),
)
WHAT = "images are converted to arrays and tensors by slipstream's C code, with the same bytes"


def applies(observation: Observation) -> Answer:
    return or_no_compiler(why_no_pictures(observation))


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(done: Notice, refused: Notice) -> Installable:
        from slipstream.data.images.to_array import ArrayConversion, PlaneKernel

        return ArrayConversion(PlaneKernel(), done, refused)

    in_c(context, WHAT, "an array differed from Pillow's or torch's: Pillow and torch convert the images again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "no edit of the source does this: use `slipstream run` with this recipe"
    return [Edit("fast_arrays", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
