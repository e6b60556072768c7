"""Decodes JPEGs at a half, a quarter or an eighth of their size if the script shrinks them immediately.

Helps where images are far larger than the training needs: the script calls `Image.open(...).convert("RGB")` and then
`resize`, `thumbnail` or a resized crop to half the size or less. Hurts the accuracy of the pixels a little, because
libjpeg shrinks the image first, as in Pillow's `thumbnail`. The training is therefore not the same.

The script sees the full size, and its crops use full coordinates, because the image is decoded only when it is shrunk.
If the image is flipped, rotated or read before that, it is decoded completely. The setting is the minimum ratio of the
decoded size to the requested size. With 2, the pixels are closer to those of the complete image.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.images import Notice, postpone, why_no_pictures
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.data.images.scaled_decode import ScaledDecode
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="JPEGs decoded at a reduced size",
    seam="loader",
    causes=("slow_decode",),
    numerics="different",
    needs=("pillow",),
    claims=("pictures.postponed", "image.cache"),  # A cache must not store images of reduced size.
    nesting=-1,
)
VALUES = (1, 2)
WHAT = "JPEGs that are shrunk immediately are decoded at a reduced size"


def applies(observation: Observation) -> Answer:
    reason = why_no_pictures(observation)
    return no(reason) if reason else YES


def settings(observation: Observation) -> list[Setting]:
    return [1, 2]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(on_use: Notice, on_waste: Notice) -> ScaledDecode:
        from slipstream.data.images.scaled_decode import ScaledDecode

        return ScaledDecode(int(setting), on_use, on_waste)

    postpone(context, WHAT, "no image is shrunk to half its size or less before another use of its pixels", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "call image.draft('RGB', size) after Image.open, with a size that suffices for crop and resize"
    return [Edit("scaled_decode", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
