"""JPEGs that Pillow opens are decoded when their pixels are needed, and no further down than a crop reaches.

Helps where pictures are opened, converted to the mode that they have, and cropped: `convert("RGB")` makes no copy, and
of a random crop the rows below it are not decoded. Hurts a little where every file has Huffman tables of its own: what
the decoder would refuse is to be refused at the conversion, so it is first tried with one row. Damage further down may
be noticed at the crop and not at the conversion, and the bytes of a file stay in memory until then. Where pictures are
needed whole, only the copy is saved; where several parts are taken of one picture, it is decoded whole, once. The
pixels are Pillow's, bit for bit: the first crops of every kind of JPEG, and then one in many, are also cut out of the
whole picture and compared. Progressive JPEGs are decoded whole, CMYK as ever. Beside a cache of decoded pixels it saves
the copy.
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
    title="Pictures decoded as far as they are used",
    seam="loader",
    causes=("slow_decode",),
    numerics="identical",
    needs=("pillow",),
    claims=("pictures.postponed",),
    nesting=-1,  # a cache of decoded pixels stands above it
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

    postpone(context, WHAT, "a picture came out otherwise: its kind is decoded whole again", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "leave out convert('RGB') for pictures that are RGB already: it copies them"
    return [Edit("fast_decode", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
