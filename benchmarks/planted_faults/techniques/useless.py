"""Changes nothing, with several settings.

Helps never. Hurts never. A tuning that may try only this one must keep nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(title="Nothing, as a candidate", seam="process", causes=(), numerics="identical")
VALUES = range(1, 7)


def applies(observation: Observation) -> Answer:
    return YES


def settings(observation: Observation) -> list[Setting]:
    return list(VALUES)


def apply(context: ApplyContext, setting: Setting) -> None:
    context.changed("nothing")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return []
