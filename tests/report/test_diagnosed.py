"""Renderers on sessions that `diagnose` has completed, from a training with chosen times."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slipstream.diagnose import diagnose
from slipstream.records import Session
from slipstream.report.json_export.export import export
from slipstream.report.notebook import to_html
from slipstream.report.terminal.session import render_session
from slipstream.testing.made_sessions import LOADER_SITE, made_session, made_stack


@pytest.fixture
def waiting() -> Session:
    """Returns a session in which a loader without workers takes 41 of 63 ms."""
    stacks = [made_stack("transform", 14, 300)]
    return diagnose(made_session(input_ms=41.0, forward_ms=8.0, backward_ms=12.0, other_ms=1.0, stacks=stacks))


def test_the_first_finding_is_the_same_everywhere(waiting: Session, paint: Callable[..., str]) -> None:
    assert waiting.findings[0].cause == "no_workers"
    first = json.loads(export(waiting))["findings"][0]
    assert first["where"].endswith(f"train.py:{LOADER_SITE.line}")
    assert first["title"] in paint(render_session, waiting)
    assert first["title"] in to_html(waiting)


def test_stages_are_those_of_the_samples(waiting: Session) -> None:
    [stage] = [one for one in json.loads(export(waiting))["stages"] if one["phase"] == "input"]
    assert (stage["stage"], stage["in_worker"]) == ("transform", False)
    assert stage["where"].endswith("train.py:14")
