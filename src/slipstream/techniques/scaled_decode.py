"""JPEGs that the script shrinks at once are decoded at a half, a quarter or an eighth of their size.

Helps where pictures are far larger than what is trained on: `Image.open(...).convert("RGB")`, then `resize`,
`thumbnail`, or a crop that is resized, to half the size or less. Hurts the pixels a little: they are shrunk by libjpeg
first, as Pillow's `thumbnail` does it, so the training is not the same. The script sees the full size, and its crops
are in full coordinates: the picture is decoded when it is shrunk. Flipped, rotated or read before, it is decoded whole.
The setting says how many times larger than asked for the decoded picture stays at least: 2 is closer to the full one.
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
    title="Pictures decoded small where they are shrunk",
    seam="loader",
    causes=("slow_decode",),
    numerics="different",
    needs=("pillow",),
    claims=("pictures.postponed", "image.cache"),  # what is decoded small is not what a cache keeps
    nesting=-1,
)
VALUES = (1, 2)
WHAT = "JPEGs that are shrunk at once are decoded small"


def applies(observation: Observation) -> Answer:
    reason = why_no_pictures(observation)
    return no(reason) if reason else YES


def settings(observation: Observation) -> list[Setting]:
    return [1, 2]


def apply(context: ApplyContext, setting: Setting) -> None:
    def make(on_use: Notice, on_waste: Notice) -> ScaledDecode:
        from slipstream.data.images.scaled_decode import ScaledDecode

        return ScaledDecode(int(setting), on_use, on_waste)

    postpone(context, WHAT, "no picture is shrunk to half its size or less before its pixels are used otherwise", make)


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    loader = observation.loader
    reason = "call image.draft('RGB', size) after Image.open, with the size that is enough for the crop and the resize"
    return [Edit("scaled_decode", "by_hand", loader.getitem_site if loader is not None else None, reason=reason)]
