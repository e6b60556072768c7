"""Decodes JPEGs opened by Pillow only when their pixels are needed, and only down to the last row of a crop.

Helps where images are opened, converted to the mode that they already have, and cropped: `convert("RGB")` makes no
copy, and rows below a random crop are not decoded. If whole images are needed, only the copy is saved. If several parts
are taken from one image, it is decoded whole, once. Beside a cache of decoded pixels the technique saves the copy.

Hurts a little where every file has its own Huffman tables: a file that the decoder refuses must fail at the conversion,
so one row is decoded there first. Damage further down a file may be noticed at the crop instead of at the conversion.
The bytes of a file stay in memory until the crop.

The pixels are bit-identical to Pillow's. The first crops of every kind of JPEG, and later a small sample, are also cut
out of the whole image and compared. Progressive JPEGs are decoded whole. CMYK images are decoded by Pillow as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card, no
from slipstream.techniques._core.images import Notice, postpone, why_no_pictures
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.data.images.partial_decode import PartialDecode
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(
    title="JPEGs decoded only as far as they are used",
    seam="loader",
    causes=("slow_decode",),
    numerics="identical",
    needs=("pillow",),
    claims=("pictures.postponed",),
    nesting=-1,  # a cache of decoded pixels wraps this technique
)
WHAT = "JPEGs are decoded as far as they are used"


def applies(observation: Observation) -> Answer:
    reason = why_no_pictures(observation)
    return no(reason) if reason else YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(on_use: Notice, on_doubt: Notice) -> PartialDecode:
        from slipstream.data.images.partial_decode import PartialDecode

        return PartialDecode(on_use, on_doubt)

    postpone(context, WHAT, "an image differed from Pillow's: images of its kind are decoded whole again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "do not call convert('RGB') on images that are RGB already: it copies them"
    return [Edit("fast_decode", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
