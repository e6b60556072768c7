"""Made techniques, a made session and a teller that remembers: tunings on a simulated track take milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Session, Tuning, Verdict
from slipstream.runner.track import Track
from slipstream.techniques.card import YES, Card
from slipstream.testing.sessions import made_session
from slipstream.tune.order import TuneOrder
from slipstream.tune.search import tune
from slipstream.tune.teller import Silence

Make = Callable[..., Any]


def _technique(numerics: str = "identical", settings: Sequence[Any] = (True,), answer: Any = YES, **card: Any) -> Any:
    return SimpleNamespace(
        CARD=Card("A made technique", "process", card.pop("causes", ()), numerics, **card),  # type: ignore[arg-type]
        applies=lambda observation: answer,
        settings=lambda observation: list(settings),
        edit=lambda observation, setting: [],
    )


class Listener(Silence):
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


@pytest.fixture
def technique() -> Make:
    return _technique


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture(scope="session")
def session() -> Session:
    return diagnose(made_session())


@pytest.fixture
def run(session: Session, listener: Listener) -> Callable[..., Tuning]:
    """A tuning of these techniques on that track."""

    def go(track: Track, techniques: Mapping[str, Any], seen: Session | None = None, **order: Any) -> Tuning:
        known = {"nothing": _technique(), **techniques}
        return tune(seen or session, track, TuneOrder(**order), listener, known)

    return go


@pytest.fixture
def verdict_of() -> Callable[..., Verdict]:
    def find(tuning: Tuning, technique: str, setting: Any = True, kind: str = "single") -> Verdict:
        found = [one for one in tuning.verdicts if one.kind == kind and one.choice == Choice(technique, setting)]
        assert len(found) == 1, f"{len(found)} {kind} verdicts on {technique}={setting}"
        return found[0]

    return find
