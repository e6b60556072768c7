"""Measures the noise of the machine with A/A controls, which change nothing, and derives the gain that a technique must
exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.records import Speed
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.trials import RecipeTrials

FAR = 0.01  # a control whose interval stays this far from 1 shows that the machine is too noisy
# Alpha for the control's interval. Its uncertainty is also part of the races, so that only a probable gain counts.
LIKELY = 0.5
MIN_ROUNDS = 6  # fewer rounds show nothing about the machine
_GRID = 400  # margins are rounded up to a quarter of a percent, so that they do not change with every round


class NoiseControl:
    """All A/A controls of a tuning."""

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._controls: list[Comparison] = []
        self._known: dict[int, tuple[int, float]] = {}  # by anchor

    def watch(self, control: Comparison) -> None:
        self._controls.append(control)

    def margin(self, anchor: RecipeTrials) -> float:
        """The gain over this anchor that a technique must exceed. It is the apparent gain or loss of the anchor's
        controls or, if that is significant, the far end of their interval. An anchor without a control of its own gets
        the margin of the base."""
        controls = [control for control in self._controls if control.anchor is anchor] or self._of_base()
        num_rounds = sum(control.sequence.num_rounds for control in controls)
        if self._known.get(id(anchor), (0, 0.0))[0] != num_rounds:
            self._known[id(anchor)] = (num_rounds, math.ceil(self._compute(controls) * _GRID - 1e-9) / _GRID)
        return self._known.get(id(anchor), (0, self._margin))[1]

    def _of_base(self) -> list[Comparison]:
        return [control for control in self._controls if not control.anchor.recipe.choices]

    def _compute(self, controls: Sequence[Comparison]) -> float:
        worst = self._margin
        for control in controls:
            if control.sequence.num_rounds < MIN_ROUNDS:
                continue
            worst = max(worst, _distance(control.sequence.speed(LIKELY)))
            if control.sequence.is_faster(FAR, 0.025) or _is_slower(control):
                worst = max(worst, *(abs(bound - 1.0) for bound in _bounds(control.sequence.speed())))
        return worst

    def speed(self) -> Speed | None:
        """The speed of the control that differs most from the base."""
        raced = [control for control in self._of_base() if control.sequence.num_rounds]
        enough = [control for control in raced if control.sequence.num_rounds >= MIN_ROUNDS]
        speeds = [control.sequence.speed() for control in enough or raced]
        return max(speeds, key=lambda speed: abs(math.log(speed.ratio)), default=None)

    def note(self) -> str:
        """A sentence if the machine was too noisy, else ""."""
        if not self._controls:
            return ""
        speed = self.speed()
        if speed is None:
            return "The A/A control did not run, so the noise of this machine is not known."
        if speed.high >= 1.0 - FAR and speed.low <= 1.0 + FAR:
            return ""
        apart = f"{abs(speed.ratio - 1.0):.0%}"
        if any(
            control.anchor.recipe.choices and control.sequence.num_rounds >= MIN_ROUNDS for control in self._controls
        ):
            return f"Two starts of the unchanged script differ by {apart} here, so the total may be off by as much."
        seems = "faster" if speed.ratio > 1.0 else "slower"
        return f"This machine was too noisy to tell: the A/A control, which changes nothing, seems {apart} {seems}."


def _distance(speed: Speed) -> float:
    """The smallest distance of the interval from 1."""
    return max(0.0, speed.low - 1.0, 1.0 - speed.high)


def _is_slower(control: Comparison) -> bool:
    return control.sequence.is_not_faster(-FAR, 0.025)


def _bounds(speed: Speed) -> tuple[float, float]:
    return speed.low, speed.high
