"""Techniques and a listener for simulated tunings."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from slipstream.records import NumericsClass, Setting, Verdict
from slipstream.techniques._core.card import YES, Answer, Card
from slipstream.tuning.progress import Silence


def made_technique(
    numerics: NumericsClass = "identical", settings: Sequence[Setting] = (True,), answer: Answer = YES, **card: Any
) -> Any:
    """A technique that applies if `answer` says so and does nothing."""
    return SimpleNamespace(
        CARD=Card("A made technique", "process", card.pop("causes", ()), numerics, **card),
        applies=lambda observation: answer,
        settings=lambda observation: list(settings),
        edit=lambda observation, setting: [],
    )


class RecordingListener(Silence):
    """Keeps what a tuning tells."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.entered: list[str] = []
        self.heats: list[list[str]] = []

    def decided(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def entering(self, rider: str) -> None:
        self.entered.append(rider)

    def racing(self, riders: Sequence[str]) -> None:
        if riders:
            self.heats.append(list(riders))
