"""What nothing at all seems to win on this machine, and what that asks of a gain before it is believed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slipstream.records import Speed
from slipstream.tuning.comparison import Comparison
from slipstream.tuning.trials import RecipeTrials

FAR = 0.01  # an interval of the control that stays this far from 1 shows a machine that cannot be trusted
LIKELY = 0.5  # the control's own uncertainty is the races' as well: only what is more likely than not counts
MIN_ROUNDS = 6  # fewer say nothing about the machine
_GRID = 400  # margins are rounded up to a quarter of a percent, so that a comparison is not begun anew each round


class NoiseControl:
    """Of the twins that rode in this tuning."""

    def __init__(self, margin: float) -> None:
        self._margin = margin
        self._controls: list[Comparison] = []
        self._known: dict[int, tuple[int, float]] = {}  # by anchor

    def watch(self, control: Comparison) -> None:
        self._controls.append(control)

    def margin(self, anchor: RecipeTrials) -> float:
        """That a gain over this one must exceed: its twins' own seeming gain or loss, all of the interval where it is
        no accident. Whose own twin never rode is taken to be as restless as the script as it is."""
        controls = [control for control in self._controls if control.anchor is anchor] or self._of_base()
        num_rounds = sum(control.sequence.num_rounds for control in controls)
        if self._known.get(id(anchor), (0, 0.0))[0] != num_rounds:
            self._known[id(anchor)] = (num_rounds, math.ceil(self._reckon(controls) * _GRID - 1e-9) / _GRID)
        return self._known.get(id(anchor), (0, self._margin))[1]

    def _of_base(self) -> list[Comparison]:
        return [control for control in self._controls if not control.anchor.recipe.choices]

    def _reckon(self, controls: Sequence[Comparison]) -> float:
        worst = self._margin
        for control in controls:
            if control.sequence.num_rounds < MIN_ROUNDS:
                continue
            worst = max(worst, _distance(control.sequence.speed(LIKELY)))
            if control.sequence.is_faster(FAR, 0.025) or _is_slower(control):
                worst = max(worst, *(abs(bound - 1.0) for bound in _bounds(control.sequence.speed())))
        return worst

    def speed(self) -> Speed | None:
        """Of the twin that seems farthest from the base."""
        raced = [control for control in self._of_base() if control.sequence.num_rounds]
        enough = [control for control in raced if control.sequence.num_rounds >= MIN_ROUNDS]
        speeds = [control.sequence.speed() for control in enough or raced]
        return max(speeds, key=lambda speed: abs(math.log(speed.ratio)), default=None)

    def note(self) -> str:
        """ "" where the machine was quiet enough."""
        if not self._controls:
            return ""
        speed = self.speed()
        if speed is None:
            return "The control did not ride: how far this machine's noise reaches is not known."
        if speed.high >= 1.0 - FAR and speed.low <= 1.0 + FAR:
            return ""
        apart = f"{abs(speed.ratio - 1.0):.0%}"
        if any(
            control.anchor.recipe.choices and control.sequence.num_rounds >= MIN_ROUNDS for control in self._controls
        ):
            return f"Two starts of the script as it is differ by {apart} here, and by so much the total may be off."
        wins = "win" if speed.ratio > 1.0 else "lose"
        return f"This machine was too noisy to tell: nothing at all seems to {wins} {apart}."


def _distance(speed: Speed) -> float:
    """How far from 1 it is at the least."""
    return max(0.0, speed.low - 1.0, 1.0 - speed.high)


def _is_slower(control: Comparison) -> bool:
    return control.sequence.is_not_faster(-FAR, 0.025)


def _bounds(speed: Speed) -> tuple[float, float]:
    return speed.low, speed.high
