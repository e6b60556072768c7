"""Stages from stack counts: shares from counts, milliseconds from what was measured."""

from __future__ import annotations

import msgspec
import pytest

from slipstream.records import Fetch, Session, StackCount
from slipstream.report.text.stages import input_stages, main_stages


def test_shares_are_laid_over_the_measured_input(sessions: dict[str, Session]) -> None:
    found = input_stages(sessions["slow"])
    assert found is not None
    assert [share.stage for share in found.stages] == ["decode", "transform", "collate", "read"]
    assert sum(share.ms for share in found.stages) == pytest.approx(41.0)
    transform = found.stages[1]
    assert transform.line is not None
    assert (transform.line.line, transform.line.expression) == (34, "self.crop(image)")
    assert found.stages[2].line is None


def test_workers_are_looked_at_where_there_are_some(sessions: dict[str, Session]) -> None:
    session = sessions["slow"]
    worker = StackCount("worker", "input", "transform", f"{session.cwd}/data.py", 9, "f", "g(x)", "", False, 1, 30)
    idle = StackCount("worker", "input", "wait", "", 0, "", "", "", True, 1, 300)
    session = msgspec.structs.replace(
        session,
        loaders=[msgspec.structs.replace(session.loaders[0], num_workers=2)],
        stacks=[worker, idle],
        fetches=[Fetch(0, 0, 1, 120_000_000, 100_000_000, 32)],
    )
    found = input_stages(session)
    assert found is not None
    assert found.num_workers == 2
    assert [share.stage for share in found.stages] == ["transform"]
    assert found.total_ms == pytest.approx(120.0)


def test_no_samples_no_table(sessions: dict[str, Session]) -> None:
    assert main_stages(sessions["slow"], "other") is None
    assert input_stages(sessions["empty"]) is None


def test_too_few_samples_no_table(sessions: dict[str, Session]) -> None:
    """With only two samples, each of two stages would get half of the time."""
    session = sessions["slow"]
    stack = StackCount("main", "other", "logging", f"{session.cwd}/train.py", 9, "f", "print(loss)", "", False, 1, 2)
    assert main_stages(msgspec.structs.replace(session, stacks=[stack]), "other") is None
    enough = msgspec.structs.replace(stack, count=12)
    assert main_stages(msgspec.structs.replace(session, stacks=[enough]), "other") is not None
