"""Techniques and a listener for simulated tunings."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from slipstream.records import NumericsClass, Recipe, Setting, Verdict
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.tuning.progress import SilentListener


def made_technique(
    numerics: NumericsClass = "identical", settings: Sequence[Setting] = (True,), answer: Answer = YES, **card: Any
) -> Any:
    """Returns a technique that changes nothing. `answer` says whether the technique applies."""
    return SimpleNamespace(
        CARD=Card("A made technique", "process", card.pop("causes", ()), numerics, **card),
        applies=lambda observation: answer,
        settings=lambda observation: list(settings),
        edit=lambda observation, setting: [],
    )


class RecordingListener(SilentListener):
    """Records the events of a tuning."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.entered: list[str] = []
        self.races: list[list[str]] = []
        self.is_racing = False
        self.waits: list[float] = []  # Numbers of cores that other programs used; 0.0 when a wait is over
        self.notes: list[str] = []
        self.bests: list[tuple[Recipe, float]] = []

    def decided(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def entering(self, trial: str) -> None:
        self.entered.append(trial)

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def waiting(self, cores: float) -> None:
        self.waits.append(cores)

    def best(self, recipe: Recipe, ratio: float) -> None:
        self.bests.append((recipe, ratio))

    def racing(self, trials: Sequence[str]) -> None:
        self.is_racing = bool(trials)
        if trials:
            self.races.append(list(trials))
