"""Decodes JPEGs opened by Pillow only when their pixels are needed, and only down to the last row of a crop.

Helps where images are opened, converted to the mode that they already have, and cropped. `convert("RGB")` then makes no
copy, and the rows below a crop are not decoded. If the script needs whole images, or if `decode_cache` is in the recipe
too, the technique saves only the copy. If the script takes several parts of an image, each image is decoded completely
and only once.

Hurts a little where every file has its own Huffman tables. A file that the decoder refuses must raise its error at the
conversion, so one row of a file with new tables is decoded there. Damage further down in a file may raise its error at
the crop instead. The bytes of a file stay in memory until the crop.

The pixels are bit-identical to Pillow's. The first crops of every kind of JPEG, and later one in 256, are also cut out
of the completely decoded image and compared. Progressive JPEGs are decoded completely. Pillow decodes CMYK images as
before.
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
    nesting=-1,  # A cache of decoded pixels wraps this technique.
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

    postpone(context, WHAT, "a crop differed from Pillow's: images of this kind are decoded completely again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "do not call convert('RGB') on images that are RGB already: it copies them"
    return [Edit("fast_decode", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
