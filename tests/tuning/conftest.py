"""Made techniques, a made session and a listener that records. Tunings on a simulated backend take milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Choice, Session, Tuning, Verdict
from slipstream.testing.made_sessions import made_session
from slipstream.testing.made_techniques import RecordingListener, made_technique
from slipstream.tuning.options import TuneOptions
from slipstream.tuning.search import tune
from slipstream.wire.backend import RaceBackend

Make = Callable[..., Any]


@pytest.fixture
def technique() -> Make:
    return made_technique


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


@pytest.fixture(scope="session")
def session() -> Session:
    return diagnose(made_session())


@pytest.fixture
def run(session: Session, listener: RecordingListener) -> Callable[..., Tuning]:
    """Runs a tuning of these techniques on that backend."""

    def go(backend: RaceBackend, techniques: Mapping[str, Any], seen: Session | None = None, **order: Any) -> Tuning:
        known = {"nothing": made_technique(), **techniques}
        return tune(seen or session, backend, TuneOptions(**order), listener, known)

    return go


@pytest.fixture
def verdict_of() -> Callable[..., Verdict]:
    def find(tuning: Tuning, technique: str, setting: Any = True, kind: str = "single") -> Verdict:
        found = [one for one in tuning.verdicts if one.kind == kind and one.choice == Choice(technique, setting)]
        assert len(found) == 1, f"{len(found)} {kind} verdicts on {technique}={setting}"
        return found[0]

    return find
