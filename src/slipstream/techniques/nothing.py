"""Changes nothing. Its trial is the A/A control of the base: a gain that is measured for this trial is noise of the
machine.

Helps in no case. Hurts in no case. If this technique seems to gain something, other ratios without an interval may be
wrong by the same factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.records import Edit, Setting
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.techniques._core.observation import Observation

if TYPE_CHECKING:
    from slipstream.techniques._core.context import ApplyContext

CARD = Card(title="Nothing, the A/A control", seam="process", causes=(), numerics="identical")


def applies(observation: Observation) -> Answer:
    return YES


def settings(observation: Observation) -> list[Setting]:
    return [True]


def apply(context: ApplyContext, setting: Setting) -> None:
    context.changed("nothing")


def edit(observation: Observation, setting: Setting) -> list[Edit]:
    return []
